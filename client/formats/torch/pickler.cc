#include "client/formats/torch/pickler.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/formats/data_type.h"
#include "client/formats/text.h"
#include "client/formats/torch/globals.h"
#include "client/formats/torch/opcodes.h"
#include "storage/base/errors.h"

namespace ckptd::torch {
namespace {

constexpr size_t kBatch = 1000;  // Items of a container between two marks, as Python writes them.

// Keeps its first error, like the unpickler.
class Pickler {
 public:
  explicit Pickler(const Limits& limits) : limits_(limits) {}

  absl::StatusOr<Pickled> Run(const Value& root) {
    Put(Opcode::kProto);
    Number(2, 1);
    Save(root);
    Put(Opcode::kStop);
    if (static_cast<int64_t>(bytes().size()) > limits_.pickle_bytes)
      TooLarge("pickle_bytes", limits_.pickle_bytes);
    if (!error_.ok()) return error_;
    return std::move(pickled_);
  }

  // One overload for each type of value.
  void operator()(const None&) { Put(Opcode::kNone); }
  void operator()(bool flag) { Put(flag ? Opcode::kNewTrue : Opcode::kNewFalse); }
  void operator()(int64_t number);
  void operator()(const BigInt& number) { Long(number.bytes); }
  void operator()(double number);
  void operator()(const std::string& text) { Text(text); }
  void operator()(const Bytes& bytes);
  void operator()(const List& list);
  void operator()(const Tuple& tuple) { SaveTuple(tuple.items, Identity(current_)); }
  void operator()(const Set& set);
  void operator()(const Dict& dict);
  void operator()(const Size& size);
  void operator()(DataType dtype) { Name({"torch", std::string(InfoOf(dtype).torch_name)}); }
  void operator()(const Tensor& tensor);
  void operator()(const BareStorage& storage);
  void operator()(const TensorReference& reference);
  void operator()(const InternalTensorReference& reference);
  void operator()(const Global& global) { SaveGlobal(global); }
  void operator()(const Object& object);

 private:
  using Memo = std::unordered_map<const void*, uint32_t>;

  void Save(const Value& value);
  void Save(const ValueRef& value);
  void SaveItems(const std::vector<ValueRef>& items);
  void SaveEntries(const std::vector<std::pair<ValueRef, ValueRef>>& entries);
  void SaveTuple(const std::vector<ValueRef>& items, const void* identity);
  void SaveGlobal(const Global& global);
  void SaveIntegers(const std::vector<int64_t>& numbers);
  void SaveTensor(const Tensor& tensor);  // Without the parameter's wrapper and attributes.
  void SaveTensorArguments(const Tensor& tensor);
  void SaveReference(const char* module, const char* name, int64_t tid,
                     const InternalTensorReference* internal);
  void SaveStorage(const StorageRef& storage, std::optional<DataType> dtype);
  void NoHooks();

  void Put(Opcode opcode) { bytes().push_back(static_cast<char>(opcode)); }
  void Number(uint64_t value, size_t width) {
    for (size_t i = 0; i < width; ++i) bytes().push_back(static_cast<char>(value >> (8 * i)));
  }
  void Long(std::string_view number);
  void Text(std::string_view text);
  void Name(const Global& global);
  // Puts the top of the stack into the memo, where Get finds it by its identity.
  void Memoize(const void* identity);
  void Memoize(std::string identity);
  void Get(uint32_t index);
  static const void* Identity(const Value* value) { return value; }

  std::string& bytes() { return pickled_.bytes; }
  void Fail(absl::StatusCode code, std::string_view reason, const std::string& why) {
    if (error_.ok()) error_ = MakeError(code, reason, why);
  }
  void Invalid(const std::string& why) { Fail(absl::StatusCode::kInvalidArgument, "INVALID_ARGUMENT", why); }
  void TooLarge(std::string_view limit, int64_t most) {
    Fail(absl::StatusCode::kResourceExhausted, "ARCHIVE_TOO_LARGE",
         absl::StrCat("the object takes more than the limit of ", most, " ", std::string(limit)));
  }

  const Limits& limits_;
  absl::Status error_;
  Pickled pickled_;
  const Value* current_ = nullptr;
  int64_t depth_ = 0;
  int64_t objects_ = 0;
  uint32_t memo_size_ = 0;
  Memo memo_;                                  // Values that are shared by reference.
  std::map<std::string, uint32_t> text_memo_;  // Text, and names of globals.
  std::unordered_set<const Value*> open_;      // The values that enclose the current one.
  std::unordered_map<const Storage*, size_t> storages_;
  std::unordered_map<const Storage*, DataType> dtypes_;
};

void Pickler::Save(const ValueRef& value) {
  if (value == nullptr) return Invalid("a value that is null");
  Save(*value);
}

void Pickler::Save(const Value& value) {
  if (!error_.ok()) return;
  if (const auto known = memo_.find(&value); known != memo_.end() && !open_.contains(&value)) {
    return Get(known->second);
  }
  if (++objects_ > limits_.objects) return TooLarge("objects", limits_.objects);
  if (static_cast<int64_t>(bytes().size()) > limits_.pickle_bytes)
    return TooLarge("pickle_bytes", limits_.pickle_bytes);
  if (depth_ > limits_.depth) return TooLarge("depth", limits_.depth);
  if (!open_.insert(&value).second)
    return Invalid(absl::StrCat("a ", std::string(KindOf(value)), " that holds itself"));
  const Value* around = std::exchange(current_, &value);
  ++depth_;
  value.Visit(*this);
  --depth_;
  current_ = around;
  open_.erase(&value);
}

void Pickler::operator()(int64_t number) {
  if (number >= 0 && number <= 0xff) {
    Put(Opcode::kBinInt1), Number(static_cast<uint64_t>(number), 1);
  } else if (number >= 0 && number <= 0xffff) {
    Put(Opcode::kBinInt2), Number(static_cast<uint64_t>(number), 2);
  } else if (number >= std::numeric_limits<int32_t>::min() && number <= std::numeric_limits<int32_t>::max()) {
    Put(Opcode::kBinInt), Number(static_cast<uint64_t>(number), 4);
  } else {
    std::string bytes;
    for (size_t i = 0; i < sizeof(number); ++i) bytes.push_back(static_cast<char>(number >> (8 * i)));
    const char sign = number < 0 ? '\xff' : '\0';
    while (bytes.back() == sign && ((bytes[bytes.size() - 2] ^ sign) & 0x80) == 0) bytes.pop_back();
    Long(bytes);
  }
}

void Pickler::operator()(double number) {
  Put(Opcode::kBinFloat);
  Number(__builtin_bswap64(std::bit_cast<uint64_t>(number)), 8);
}

void Pickler::Long(std::string_view number) {
  if (number.size() <= 0xff) {
    Put(Opcode::kLong1), Number(number.size(), 1);
  } else if (number.size() <= 0x7fffffff) {
    Put(Opcode::kLong4), Number(number.size(), 4);
  } else {
    return Invalid("an int of more than 2 GiB");
  }
  bytes().append(number);
}

void Pickler::Text(std::string_view text) {
  if (text.size() > 0xffffffff || !IsPythonText(text))
    return Invalid("text that is not UTF-8, or larger than 4 GiB");
  std::string identity = absl::StrCat("s", std::string(text));
  if (const auto known = text_memo_.find(identity); known != text_memo_.end()) return Get(known->second);
  Put(Opcode::kBinUnicode);
  Number(text.size(), 4);
  bytes().append(text);
  Memoize(std::move(identity));
}

// Protocol 2 has no opcode for bytes: they are written as text whose characters are the bytes. So are empty
// bytes: torch.load(weights_only=True) does not accept what Python writes for those.
void Pickler::operator()(const Bytes& held) {
  Name({"_codecs", "encode"});
  Text(FromLatin1(held.bytes));
  Text("latin1");
  Put(Opcode::kTuple2);
  Memoize(nullptr);
  Put(Opcode::kReduce);
  Memoize(current_);
}

void Pickler::operator()(const List& list) {
  Put(Opcode::kEmptyList);
  Memoize(current_);
  SaveItems(list.items);
}

void Pickler::SaveItems(const std::vector<ValueRef>& items) {
  for (size_t begin = 0; begin < items.size(); begin += kBatch) {
    const size_t end = std::min(items.size(), begin + kBatch);
    const bool one = end - begin == 1;
    if (!one) Put(Opcode::kMark);
    for (size_t i = begin; i < end; ++i) Save(items[i]);
    Put(one ? Opcode::kAppend : Opcode::kAppends);
  }
}

void Pickler::SaveEntries(const std::vector<std::pair<ValueRef, ValueRef>>& entries) {
  for (size_t begin = 0; begin < entries.size(); begin += kBatch) {
    const size_t end = std::min(entries.size(), begin + kBatch);
    const bool one = end - begin == 1;
    if (!one) Put(Opcode::kMark);
    for (size_t i = begin; i < end; ++i) {
      Save(entries[i].first);
      Save(entries[i].second);
    }
    Put(one ? Opcode::kSetItem : Opcode::kSetItems);
  }
}

void Pickler::SaveTuple(const std::vector<ValueRef>& items, const void* identity) {
  if (items.empty()) return Put(Opcode::kEmptyTuple);
  constexpr Opcode kShort[] = {Opcode::kTuple1, Opcode::kTuple2, Opcode::kTuple3};
  const bool is_short = items.size() <= std::size(kShort);
  if (!is_short) Put(Opcode::kMark);
  for (const ValueRef& item : items) Save(item);
  Put(is_short ? kShort[items.size() - 1] : Opcode::kTuple);
  Memoize(identity);
}

void Pickler::SaveIntegers(const std::vector<int64_t>& numbers) {
  std::vector<ValueRef> items;
  items.reserve(numbers.size());
  for (const int64_t number : numbers) items.push_back(MakeInt(number));
  SaveTuple(items, nullptr);
}

void Pickler::operator()(const Set& set) {
  Name({"builtins", set.frozen ? "frozenset" : "set"});
  Put(Opcode::kEmptyList);
  Memoize(nullptr);
  SaveItems(set.items);
  Put(Opcode::kTuple1);
  Memoize(nullptr);
  Put(Opcode::kReduce);
  Memoize(current_);
}

void Pickler::operator()(const Dict& dict) {
  if (dict.ordered) {
    Name({"collections", "OrderedDict"});
    Put(Opcode::kEmptyTuple);
    Put(Opcode::kReduce);
  } else {
    Put(Opcode::kEmptyDict);
  }
  Memoize(current_);
  SaveEntries(dict.entries());
  if (dict.attributes == nullptr) return;
  if (!dict.ordered) return Invalid("a plain dict with attributes");
  Save(dict.attributes);
  Put(Opcode::kBuild);
}

void Pickler::operator()(const Size& size) {
  Name({"torch", "Size"});
  SaveIntegers(size.dimensions);
  Put(Opcode::kTuple1);
  Memoize(nullptr);
  Put(Opcode::kReduce);
  Memoize(current_);
}

void Pickler::NoHooks() {
  Name({"collections", "OrderedDict"});
  Put(Opcode::kEmptyTuple);
  Put(Opcode::kReduce);
  Memoize(nullptr);
}

void Pickler::operator()(const Tensor& tensor) {
  if (const absl::Status good = CheckTensor(tensor); !good.ok()) return Invalid(std::string(good.message()));
  const bool untyped = InfoOf(tensor.dtype).storage_class.empty();
  const Global function{"torch._utils", untyped ? "_rebuild_tensor_v3" : "_rebuild_tensor_v2"};
  if (tensor.parameter) {
    Name({"torch._utils", tensor.attributes ? "_rebuild_parameter_with_state" : "_rebuild_parameter"});
    Put(Opcode::kMark);
    Name(function);
    SaveTensorArguments(tensor);
    Put(Opcode::kReduce);
    Memoize(nullptr);
    (*this)(tensor.requires_grad);
    NoHooks();
  } else if (tensor.attributes) {
    Name({"torch._tensor", "_rebuild_from_type_v2"});
    Put(Opcode::kMark);
    Name(function);
    Name({"torch", "Tensor"});
    SaveTensorArguments(tensor);
  } else {
    Name(function);
    SaveTensorArguments(tensor);
    Put(Opcode::kReduce);
    return Memoize(current_);
  }
  if (tensor.attributes) Save(tensor.attributes);
  Put(Opcode::kTuple);
  Memoize(nullptr);
  Put(Opcode::kReduce);
  Memoize(current_);
}

void Pickler::SaveTensorArguments(const Tensor& tensor) {
  const bool untyped = InfoOf(tensor.dtype).storage_class.empty();
  Put(Opcode::kMark);
  SaveStorage(tensor.storage, untyped ? std::nullopt : std::optional(tensor.dtype));
  (*this)(tensor.offset);
  SaveIntegers(tensor.shape);
  SaveIntegers(tensor.stride);
  (*this)(tensor.requires_grad && !tensor.parameter);
  NoHooks();
  if (untyped) (*this)(tensor.dtype);
  if (tensor.math_bits) Save(tensor.math_bits);
  Put(Opcode::kTuple);
  Memoize(nullptr);
}

void Pickler::operator()(const BareStorage& bare) {
  if (bare.storage == nullptr || (bare.dtype && InfoOf(*bare.dtype).storage_class.empty())) {
    return Invalid("a storage that torch has no class for");
  }
  SaveStorage(bare.storage, bare.dtype);
}

void Pickler::SaveStorage(const StorageRef& storage, std::optional<DataType> dtype) {
  const DataType held = dtype.value_or(DataType::kUInt8);  // As torch does for untyped storages.
  const auto dtype_of = dtypes_.emplace(storage.get(), held).first;
  if (dtype_of->second != held && storage->bytes > 0) {
    return Invalid(absl::StrCat("tensors of ", std::string(InfoOf(dtype_of->second).torch_name), " and ",
                                std::string(InfoOf(held).torch_name),
                                " in one storage: torch cannot load that"));
  }
  if (storage->bytes % InfoOf(held).item_bytes != 0) {
    return Invalid(absl::StrCat("a storage of ", storage->bytes, " bytes that end within a ",
                                std::string(InfoOf(held).torch_name), ": torch cannot load that"));
  }
  const auto [place, is_new] = storages_.emplace(storage.get(), pickled_.storages.size());
  if (is_new) pickled_.storages.push_back(storage);
  Put(Opcode::kMark);
  Text("storage");
  if (dtype) {
    Name({"torch", std::string(InfoOf(*dtype).storage_class)});
  } else {
    Name({"torch.storage", "UntypedStorage"});
  }
  Text(absl::StrCat(place->second));
  Text(storage->location);
  (*this)(storage->bytes / InfoOf(held).item_bytes);
  Put(Opcode::kTuple);
  Memoize(nullptr);
  Put(Opcode::kBinPersId);
}

void Pickler::SaveReference(const char* module, const char* name, int64_t tid,
                            const InternalTensorReference* internal) {
  Name({module, name});
  Put(Opcode::kEmptyTuple);
  Put(Opcode::kNewObj);
  Memoize(current_);
  Put(Opcode::kEmptyDict);
  Memoize(nullptr);
  if (internal == nullptr) {
    Text("tid");
    (*this)(tid);
    Put(Opcode::kSetItem);
  } else {
    Put(Opcode::kMark);
    Text("tid");
    (*this)(tid);
    Text("shape");
    Put(Opcode::kEmptyList);
    Memoize(nullptr);
    std::vector<ValueRef> shape;
    for (const int64_t dimension : internal->shape) shape.push_back(MakeInt(dimension));
    SaveItems(shape);
    Text("dtype");
    (*this)(internal->dtype);
    Text("expert_model_parallel");
    (*this)(internal->expert_model_parallel);
    Put(Opcode::kSetItems);
  }
  Put(Opcode::kBuild);
}

void Pickler::operator()(const TensorReference& reference) {
  SaveReference("torch_xla.utils.serialization", "TensorReference", reference.tid, nullptr);
}

void Pickler::operator()(const InternalTensorReference& reference) {
  SaveReference("neuronx_distributed.trainer.checkpoint", "_InternalTensorReference", reference.tid,
                &reference);
}

// Writes only what the reader accepts, so that no tree makes a file that names anything else.
void Pickler::SaveGlobal(const Global& global) {
  const std::optional<KnownGlobal> known = FindGlobal(global.module, global.name);
  if (!known || known->role == Role::kGetAttribute) {
    return Invalid(absl::StrCat(global.module, ".", global.name, " is not among what ckptd writes"));
  }
  Name(global);
}

// True for what the reader makes an Object of.
bool CanCarry(const Object& object) {
  const std::optional<KnownGlobal> known = FindGlobal(object.callable.module, object.callable.name);
  const Tuple* arguments = object.arguments != nullptr ? object.arguments->As<Tuple>() : nullptr;
  if (!known || arguments == nullptr) return false;
  if (known->role == Role::kGetAttribute) return !object.by_new && NamesMember(*arguments);
  return known->role == Role::kCarried || (known->role == Role::kEnumeration && !object.by_new);
}

void Pickler::operator()(const Object& object) {
  if (!CanCarry(object)) {
    return Invalid(absl::StrCat("an object of ", object.callable.module, ".", object.callable.name,
                                ", which is not among what ckptd writes"));
  }
  const Value* self = current_;
  Name(object.callable);
  Save(object.arguments);
  Put(object.by_new ? Opcode::kNewObj : Opcode::kReduce);
  Memoize(self);
  SaveItems(object.items);
  SaveEntries(object.entries);
  if (object.state == nullptr) return;
  Save(object.state);
  Put(Opcode::kBuild);
}

void Pickler::Name(const Global& global) {
  const GlobalName name = NameInPython2({global.module, global.name});
  const std::string line = absl::StrCat(std::string(name.module), "\n", std::string(name.name), "\n");
  std::string identity = "g" + line;
  if (const auto known = text_memo_.find(identity); known != text_memo_.end()) return Get(known->second);
  Put(Opcode::kGlobal);
  bytes().append(line);
  Memoize(std::move(identity));
}

void Pickler::Memoize(const void* identity) {
  const uint32_t index = memo_size_++;
  Put(index <= 0xff ? Opcode::kBinPut : Opcode::kLongBinPut);
  Number(index, index <= 0xff ? 1 : 4);
  if (identity != nullptr) memo_.emplace(identity, index);
}

void Pickler::Memoize(std::string identity) {
  text_memo_.emplace(std::move(identity), memo_size_);
  Memoize(nullptr);
}

void Pickler::Get(uint32_t index) {
  Put(index <= 0xff ? Opcode::kBinGet : Opcode::kLongBinGet);
  Number(index, index <= 0xff ? 1 : 4);
}

}  // namespace

absl::StatusOr<Pickled> Pickle(const Value& root, const Limits& limits) { return Pickler(limits).Run(root); }

}  // namespace ckptd::torch
