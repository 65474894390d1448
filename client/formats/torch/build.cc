// The part of the unpickler that makes containers and objects, and evaluates calls.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/formats/text.h"
#include "client/formats/torch/unpickler.h"
#include "storage/base/errors.h"

namespace ckptd::torch {
namespace {

// count * bytes; nullopt if it exceeds 63 bits.
std::optional<int64_t> Times(int64_t count, int64_t bytes) {
  int64_t product;
  return count < 0 || __builtin_mul_overflow(count, bytes, &product) ? std::nullopt : std::optional(product);
}

int64_t SumUpTo(int64_t most, int64_t a, int64_t b) { return a > most - b ? most + 1 : a + b; }

bool IsReference(const Global& callable) {
  const std::optional<KnownGlobal> known = FindGlobal(callable.module, callable.name);
  return known && (known->role == Role::kTensorReference || known->role == Role::kInternalTensorReference);
}

}  // namespace

void Unpickler::Hold(Value& parent, const ValueRef& child) {
  if (!ok()) return;
  if (child.get() == &parent) return Damaged("an object that holds itself");
  CheckWhole(*child);
  child->held_ = true;
  parent.depth_ = std::max(parent.depth_, child->depth_ + 1);
  if (parent.depth_ > limits_.depth) return TooLarge("depth", limits_.depth);
  parent.objects_ = SumUpTo(limits_.objects, parent.objects_, child->objects_);
  if (parent.objects_ > limits_.objects)
    return TooLarge("objects, shared ones counted each time", limits_.objects);
  parent.string_bytes_ = SumUpTo(limits_.string_bytes, parent.string_bytes_, child->string_bytes_);
  if (parent.string_bytes_ > limits_.string_bytes) {
    TooLarge("string_bytes, shared ones counted each time", limits_.string_bytes);
  }
}

// Only a cycle needs to change a value that something holds. Refusing that excludes cycles, and it makes the
// size of a value final when it is held.
void Unpickler::CheckOpen(const Value& target) {
  if (target.held_) {
    Damaged(absl::StrCat("a ", std::string(KindOf(target)), " changes that another object holds (a cycle?)"));
  }
}

// A reference gets its number by BUILD. Without that it refers to nothing. And getattr is for calls only.
void Unpickler::CheckWhole(const Value& value) {
  const Global* global = value.As<Global>();
  if (global != nullptr && FindGlobal(global->module, global->name)->role == Role::kGetAttribute)
    return Unsafe(global->module, global->name);
  const Object* object = value.As<Object>();
  if (object != nullptr && IsReference(object->callable)) {
    Damaged(absl::StrCat("a ", object->callable.name, " without its state"));
  }
}

void Unpickler::Append(Value& target, std::vector<ValueRef> items) {
  CheckOpen(target);
  List* list = target.As<List>();
  Object* object = target.As<Object>();
  if (list == nullptr && object == nullptr) {
    return Damaged(absl::StrCat("an item is appended to a ", std::string(KindOf(target))));
  }
  std::vector<ValueRef>& to = list != nullptr ? list->items : object->items;
  for (ValueRef& item : items) {
    Hold(target, item);
    if (!ok()) return;  // A list that holds itself would never be freed.
    to.push_back(std::move(item));
  }
}

void Unpickler::SetItems(Value& target, const std::vector<ValueRef>& items) {
  CheckOpen(target);
  Dict* dict = target.As<Dict>();
  Object* object = target.As<Object>();
  if (dict == nullptr && object == nullptr) {
    return Damaged(absl::StrCat("an item is set in a ", std::string(KindOf(target))));
  }
  if (items.size() % 2 != 0) return Damaged("a key without a value");
  for (size_t i = 0; i < items.size() && ok(); i += 2) {
    Hold(target, items[i]);
    Hold(target, items[i + 1]);
    Count(items[i]->objects_);  // The cost of comparing the key.
    CountText(static_cast<uint64_t>(items[i]->string_bytes_));
    if (!ok()) return;
    if (object != nullptr) {
      object->entries.emplace_back(items[i], items[i + 1]);
    } else if (const absl::Status set = dict->Set(items[i], items[i + 1]); !set.ok()) {
      Damaged(std::string(set.message()));
    }
  }
}

void Unpickler::AddItems(Value& target, const std::vector<ValueRef>& items) {
  CheckOpen(target);
  Set* set = target.As<Set>();
  if (set == nullptr) return Damaged(absl::StrCat("an item is added to a ", std::string(KindOf(target))));
  for (const ValueRef& item : items) {
    Hold(target, item);
    Count(item->objects_);  // The cost of finding out whether it can be hashed.
    CountText(static_cast<uint64_t>(item->string_bytes_));
    if (!ok()) return;
    if (!KeyIdentity(*item))
      return Damaged(absl::StrCat("a ", std::string(KindOf(*item)), " as an item of a set"));
    set->items.push_back(item);
  }
}

ValueRef Unpickler::SetOf(const std::vector<ValueRef>& items, bool frozen) {
  ValueRef made = Make(Set{{}, frozen});
  AddItems(*made, items);
  return made;
}

std::optional<KnownGlobal> Unpickler::Known(const Value& callable) {
  if (callable.As<DataType>() != nullptr) return KnownGlobal{Role::kDataType, std::nullopt};
  const Global* global = callable.As<Global>();
  if (global == nullptr) {
    Damaged(absl::StrCat("a ", std::string(KindOf(callable)), " is called"));
    return std::nullopt;
  }
  return FindGlobal(global->module, global->name);
}

void Unpickler::PushGlobal(std::string_view in_module, std::string_view in_name) {
  if (!ok()) return;
  const auto [module, name] = NameInPython3({in_module, in_name});
  const std::optional<KnownGlobal> known = FindGlobal(module, name);
  if (!known) return Unsafe(module, name);
  if (known->role == Role::kDataType) return Push(Make(*known->dtype));
  Push(Make(Global{std::string(module), std::string(name)}));
}

// Handles the reference to a storage: ("storage", class, key, location, number of elements).
void Unpickler::PushStorage() {
  const ValueRef reference = Pop();
  const Tuple* tuple = reference->As<Tuple>();
  if (tuple == nullptr || tuple->items.size() != 5)
    return Damaged("a storage is not named as torch names it");
  const auto* what = tuple->items[0]->As<std::string>();
  const Global* type = tuple->items[1]->As<Global>();
  const auto* key = tuple->items[2]->As<std::string>();
  const auto* location = tuple->items[3]->As<std::string>();
  const auto* elements = tuple->items[4]->As<int64_t>();
  if (what == nullptr || *what != "storage" || type == nullptr || key == nullptr || location == nullptr ||
      elements == nullptr) {
    return Damaged("a storage is not named as torch names it");
  }
  const std::optional<KnownGlobal> known = FindGlobal(type->module, type->name);
  if (!known || known->role != Role::kStorageClass) {
    return Damaged(absl::StrCat("a storage of class ", type->module, ".", type->name));
  }
  const DataType dtype = known->dtype.value_or(DataType::kUInt8);
  const int64_t item = InfoOf(dtype).item_bytes;
  const std::optional<int64_t> bytes = Times(*elements, item);
  if (!bytes) return Damaged(absl::StrCat("a storage of ", *elements, " elements"));
  CountText(key->size() + location->size());
  if (!ok()) return;

  if (!storages_.contains(*key)) {
    const std::optional<StoragePlace> place = find_(*key);
    if (!place) return Damaged(absl::StrCat("storage ", *key, " has no record"));
    // The record may end within an element. No tensor has that element, and torch would not load it.
    if (*bytes > place->bytes || place->bytes - *bytes >= item) {
      return Damaged(
          absl::StrCat("storage ", *key, " has ", *bytes, " bytes, and its record ", place->bytes));
    }
    auto storage = std::make_shared<Storage>(Storage{*bytes, *location, *key, place->file_offset});
    storages_.emplace(*key, KnownStorage{storage, dtype});
    storage_order_.push_back(std::move(storage));
  }
  const KnownStorage& found = storages_.at(*key);
  if (found.storage->bytes != *bytes) {
    return Damaged(
        absl::StrCat("storage ", *key, " has ", *bytes, " bytes, and ", found.storage->bytes, " elsewhere"));
  }
  if (found.dtype != dtype || found.storage->location != *location) {
    return Damaged(absl::StrCat("storage ", *key, " is named twice, with different dtypes or locations"));
  }
  Push(Make(BareStorage{found.storage, known->dtype}));
}

void Unpickler::Reduce() {
  const ValueRef arguments = Pop();
  const ValueRef callable = Pop();
  const std::optional<KnownGlobal> known = Known(*callable);
  if (!ok()) return;
  if (arguments->As<Tuple>() == nullptr) return Damaged("a call whose arguments are not a tuple");
  const Global* global = callable->As<Global>();
  if (global == nullptr || known->role == Role::kNamed || known->role == Role::kStorageClass) {
    return Fail(absl::StatusCode::kFailedPrecondition, "UNSAFE_PICKLE",
                absl::StrCat("the pickle calls ",
                             global != nullptr ? absl::StrCat(global->module, ".", global->name) : "a dtype",
                             ", which ckptd knows by name only and never runs"));
  }
  if (known->role == Role::kReconstructor) {  // (class, object, None)
    const std::vector<ValueRef>& items = arguments->As<Tuple>()->items;
    if (items.size() != 3 || items[2]->As<None>() == nullptr)
      return Damaged("an object with an argument where none belongs");
    return New(items[0], Make(Tuple()));
  }
  Push(Call(*global, known->role, arguments));
}

ValueRef Unpickler::Call(const Global& callable, const Role role, const ValueRef& arguments) {
  const std::vector<ValueRef>& items = arguments->As<Tuple>()->items;
  switch (role) {
    case Role::kOrderedDict: {
      if (!items.empty()) Damaged("an OrderedDict made of arguments");
      Dict dict;
      dict.ordered = true;
      return Make(std::move(dict));
    }
    case Role::kSet:
    case Role::kFrozenSet: {
      const std::vector<ValueRef>* of = items.size() == 1 ? Sequence(*items[0]) : nullptr;
      if (of == nullptr && !items.empty()) Damaged("a set that is not made of a list");
      return SetOf(of != nullptr ? *of : std::vector<ValueRef>(), role == Role::kFrozenSet);
    }
    case Role::kBytes:
      if (!items.empty()) Damaged("bytes that are made of something");
      return Make(Bytes());
    case Role::kEncode:
      return Encode(items);
    case Role::kSize:
      return SizeOf(items);
    case Role::kTensor:
      return TensorOf(items, false);
    case Role::kTensorV3:
      return TensorOf(items, true);
    case Role::kTensorOfType:
      return TensorOfType(items);
    case Role::kParameter:
      return ParameterOf(items, false);
    case Role::kParameterWithState:
      return ParameterOf(items, true);
    case Role::kCarried:
    case Role::kEnumeration:
      return Carry(callable, false, arguments);
    case Role::kGetAttribute:
      CheckMember(*arguments->As<Tuple>());
      return Carry(callable, false, arguments);
    case Role::kNamed:
    case Role::kDataType:
    case Role::kStorageClass:
    case Role::kReconstructor:
    case Role::kTensorReference:
    case Role::kInternalTensorReference:
      break;
  }
  Damaged(absl::StrCat("a ", callable.name, " that is not made as Python makes it"));
  return Make(None());
}

void Unpickler::CheckMember(const Tuple& arguments) {
  if (NamesMember(arguments)) return;
  Fail(absl::StatusCode::kFailedPrecondition, "UNSAFE_PICKLE",
       "the pickle asks for builtins.getattr of something other than a known enumeration's member, which "
       "ckptd "
       "never runs");
}

void Unpickler::New(const ValueRef& callable, const ValueRef& arguments) {
  const std::optional<KnownGlobal> known = Known(*callable);
  if (!ok()) return;
  const Tuple* tuple = arguments->As<Tuple>();
  const bool reference =
      known->role == Role::kTensorReference || known->role == Role::kInternalTensorReference;
  if (tuple == nullptr || !(known->role == Role::kCarried || (reference && tuple->items.empty()))) {
    const Global* global = callable->As<Global>();
    return Damaged(absl::StrCat("a ", global != nullptr ? global->name : "dtype",
                                " that is not made as Python makes it"));
  }
  Push(Carry(*callable->As<Global>(), true, arguments));
}

ValueRef Unpickler::Carry(const Global& callable, bool by_new, const ValueRef& arguments) {
  Object object;
  object.callable = callable;
  object.by_new = by_new;
  object.arguments = arguments;
  ValueRef made = Make(std::move(object));
  Hold(*made, arguments);
  return made;
}

ValueRef Unpickler::Encode(const std::vector<ValueRef>& arguments) {
  const auto* text = arguments.size() == 2 ? arguments[0]->As<std::string>() : nullptr;
  const auto* encoding = arguments.size() == 2 ? arguments[1]->As<std::string>() : nullptr;
  if (text == nullptr || encoding == nullptr || (*encoding != "latin1" && *encoding != "latin-1")) {
    Damaged("bytes that are not made of text by latin1");
    return Make(None());
  }
  CountText(text->size());
  if (!ok()) return Make(None());
  std::optional<std::string> bytes = ToLatin1(*text);
  if (!bytes) Damaged("bytes made of characters beyond latin1");
  ValueRef value = Make(Bytes{std::move(bytes).value_or("")});
  value->string_bytes_ = static_cast<int64_t>(value->As<Bytes>()->bytes.size());
  return value;
}

const std::vector<ValueRef>* Unpickler::Sequence(const Value& value) {
  if (const List* list = value.As<List>()) return &list->items;
  if (const Tuple* tuple = value.As<Tuple>()) return &tuple->items;
  return nullptr;
}

std::vector<int64_t> Unpickler::Integers(const Value& sequence) {
  std::vector<int64_t> numbers;
  if (const Size* size = sequence.As<Size>()) {
    Count(static_cast<int64_t>(size->dimensions.size()));
    if (ok()) numbers = size->dimensions;
    return numbers;
  }
  const std::vector<ValueRef>* items = Sequence(sequence);
  if (items == nullptr) {
    Damaged(absl::StrCat("a ", std::string(KindOf(sequence)), " instead of numbers"));
    return numbers;
  }
  Count(static_cast<int64_t>(items->size()));
  if (!ok()) return numbers;
  for (const ValueRef& item : *items) {
    const auto* number = item->As<int64_t>();
    if (number == nullptr) {
      Damaged(absl::StrCat("a ", std::string(KindOf(*item)), " instead of a number"));
      break;
    }
    numbers.push_back(*number);
  }
  return numbers;
}

ValueRef Unpickler::SizeOf(const std::vector<ValueRef>& arguments) {
  if (arguments.size() > 1) Damaged("a torch.Size that is not made of a tuple");
  Size size;
  if (arguments.size() == 1) size.dimensions = Integers(*arguments[0]);
  ValueRef made = Make(std::move(size));
  made->objects_ += arguments.empty() ? 0 : arguments[0]->objects_;
  return made;
}

void Unpickler::CheckNoHooks(const Value& hooks) {
  const Dict* dict = hooks.As<Dict>();
  const bool none = hooks.As<None>() != nullptr || (dict != nullptr && dict->empty() && !dict->attributes);
  if (!none) Damaged("a tensor with backward hooks");
}

// (storage, offset, shape, stride, requires_grad, hooks[, dtype][, math bits])
ValueRef Unpickler::TensorOf(const std::vector<ValueRef>& arguments, bool with_dtype) {
  const size_t least = with_dtype ? 7 : 6;
  if (arguments.size() != least && arguments.size() != least + 1) {
    Damaged(absl::StrCat("a tensor made of ", arguments.size(), " arguments"));
    return Make(None());
  }
  const BareStorage* storage = arguments[0]->As<BareStorage>();
  const auto* offset = arguments[1]->As<int64_t>();
  const auto* requires_grad = arguments[4]->As<bool>();
  const auto* dtype = with_dtype ? arguments[6]->As<DataType>()
                                 : (storage != nullptr && storage->dtype ? &*storage->dtype : nullptr);
  if (storage == nullptr || offset == nullptr || requires_grad == nullptr || dtype == nullptr) {
    Damaged("a tensor that is not made as torch makes it");
    return Make(None());
  }
  CheckNoHooks(*arguments[5]);
  Tensor tensor;
  tensor.storage = storage->storage;
  tensor.dtype = *dtype;
  tensor.offset = *offset;
  tensor.shape = Integers(*arguments[2]);
  tensor.stride = Integers(*arguments[3]);
  tensor.requires_grad = *requires_grad;
  const ValueRef math_bits = arguments.size() > least ? arguments[least] : nullptr;
  if (math_bits != nullptr && math_bits->As<None>() == nullptr) {
    if (math_bits->As<Dict>() == nullptr) Damaged("a tensor whose math bits are not a dict");
    tensor.math_bits = math_bits;
  }
  if (const absl::Status good = CheckTensor(tensor); ok() && !good.ok()) Damaged(std::string(good.message()));
  ValueRef made = Make(std::move(tensor));
  made->objects_ += static_cast<int64_t>(made->As<Tensor>()->shape.size());
  if (made->As<Tensor>()->math_bits) Hold(*made, made->As<Tensor>()->math_bits);
  return made;
}

void Unpickler::SetAttributes(Value& tensor, const ValueRef& state) {
  if (state->As<None>() != nullptr) return;
  Hold(tensor, state);
  if (ok()) tensor.As<Tensor>()->attributes = state;
}

// (function, class, its arguments, state): a tensor on which a program has set attributes.
ValueRef Unpickler::TensorOfType(const std::vector<ValueRef>& arguments) {
  const Global* function = arguments.size() == 4 ? arguments[0]->As<Global>() : nullptr;
  const Global* type = arguments.size() == 4 ? arguments[1]->As<Global>() : nullptr;
  const Tuple* inner = arguments.size() == 4 ? arguments[2]->As<Tuple>() : nullptr;
  const auto makes = [&](Role role) {
    const std::optional<KnownGlobal> known =
        function != nullptr ? FindGlobal(function->module, function->name) : std::nullopt;
    return known && known->role == role;
  };
  const bool with_dtype = makes(Role::kTensorV3);
  const bool tensor = with_dtype || makes(Role::kTensor);
  const bool plain =
      type && ((type->module == "torch" && type->name == "Tensor") || type->name == "Parameter");
  if (!tensor || !plain || inner == nullptr) {
    Damaged("a tensor of another class that is not made as torch makes it");
    return Make(None());
  }
  ValueRef made = TensorOf(inner->items, with_dtype);
  if (!ok()) return made;
  made->As<Tensor>()->parameter = type->name == "Parameter";
  SetAttributes(*made, arguments[3]);
  return made;
}

// (tensor, requires_grad, hooks[, state])
ValueRef Unpickler::ParameterOf(const std::vector<ValueRef>& arguments, bool with_state) {
  const size_t expected = with_state ? 4 : 3;
  const Tensor* data = arguments.size() == expected ? arguments[0]->As<Tensor>() : nullptr;
  const auto* requires_grad = arguments.size() == expected ? arguments[1]->As<bool>() : nullptr;
  if (data == nullptr || requires_grad == nullptr) {
    Damaged("a parameter that is not made as torch makes it");
    return Make(None());
  }
  CheckNoHooks(*arguments[2]);
  Count(static_cast<int64_t>(data->shape.size()));
  if (!ok()) return Make(None());
  ValueRef made = Make(*data);
  Hold(*made, arguments[0]);  // The parameter holds what its tensor holds.
  auto& parameter = *made->As<Tensor>();
  parameter.parameter = true;
  parameter.requires_grad = *requires_grad;
  if (with_state) SetAttributes(*made, arguments[3]);
  return made;
}

void Unpickler::Build(Value& target, const ValueRef& state) {
  if (!ok()) return;
  CheckOpen(target);
  Dict* dict = target.As<Dict>();
  Object* object = target.As<Object>();
  if (object != nullptr && IsReference(object->callable)) {
    return BecomeReference(target, FindGlobal(object->callable.module, object->callable.name)->role, *state);
  }
  const bool fits = dict != nullptr && dict->ordered && state->As<Dict>() != nullptr && !dict->attributes;
  if (!fits && (object == nullptr || object->state)) {
    return Damaged(absl::StrCat("the state of a ", std::string(KindOf(target)), " is set to a ",
                                std::string(KindOf(*state))));
  }
  Hold(target, state);
  if (!ok()) return;
  (fits ? dict->attributes : object->state) = state;
}

void Unpickler::BecomeReference(Value& target, Role role, const Value& state) {
  const Dict* dict = state.As<Dict>();
  const ValueRef tid = dict != nullptr ? dict->Find("tid") : nullptr;
  const auto* number = tid != nullptr ? tid->As<int64_t>() : nullptr;
  if (number == nullptr || *number < 0) return Damaged("a reference to a tensor without its number");
  if (role == Role::kTensorReference) {
    if (dict->size() != 1) return Damaged("a TensorReference with more than its number");
    return target.Become(TensorReference{*number});
  }
  const ValueRef shape = dict->Find("shape"), dtype = dict->Find("dtype");
  const ValueRef expert = dict->Find("expert_model_parallel");
  const auto* type = dtype != nullptr ? dtype->As<DataType>() : nullptr;
  const auto* flag = expert != nullptr ? expert->As<bool>() : nullptr;
  if (dict->size() != 4 || shape == nullptr || type == nullptr || flag == nullptr) {
    return Damaged("an _InternalTensorReference without its number, shape, dtype or expert_model_parallel");
  }
  InternalTensorReference reference{*number, Integers(*shape), *type, *flag};
  target.objects_ += static_cast<int64_t>(reference.shape.size());
  target.Become(std::move(reference));
}

}  // namespace ckptd::torch
