#include "client/formats/torch/value.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"

namespace ckptd::torch {
namespace {

constexpr size_t kFewKeys = 8;
constexpr int kKeyDepth = 8;

bool AppendIdentity(const Value& key, int depth, std::string& to);

// Python takes 1, 1.0 and True for the same key.
void AppendNumber(int64_t number, std::string& to) { absl::StrAppend(&to, "i", number, ";"); }

void AppendFloat(double number, std::string& to) {
  constexpr double kBeyond = 9223372036854775808.0;
  if (number == std::floor(number) && number >= -kBeyond && number < kBeyond) {
    AppendNumber(static_cast<int64_t>(number), to);
  } else {
    absl::StrAppend(&to, "f", std::bit_cast<uint64_t>(number), ";");
  }
}

void AppendAddress(const void* address, std::string& to) {
  absl::StrAppend(&to, "a", reinterpret_cast<uintptr_t>(address), ";");
}

// Prefixes the length, so that ("ab", "c") and ("a", "bc") differ.
void AppendText(char kind, std::string_view text, std::string& to) {
  to.push_back(kind);
  absl::StrAppend(&to, text.size(), ":");
  to.append(text);
}

bool AppendTuple(const Tuple& tuple, int depth, std::string& to) {
  to.push_back('(');
  for (const ValueRef& item : tuple.items) {
    if (!AppendIdentity(*item, depth + 1, to)) return false;
  }
  to.push_back(')');
  return true;
}

struct IdentityAppender {
  int depth;
  std::string& to;

  bool operator()(const None&) const { return to.push_back('N'), true; }
  bool operator()(bool flag) const { return AppendNumber(flag ? 1 : 0, to), true; }
  bool operator()(int64_t number) const { return AppendNumber(number, to), true; }
  bool operator()(double number) const { return AppendFloat(number, to), true; }
  bool operator()(const BigInt& number) const { return AppendText('I', number.bytes, to), true; }
  bool operator()(const Bytes& bytes) const { return AppendText('b', bytes.bytes, to), true; }
  bool operator()(const std::string& text) const { return AppendText('s', text, to), true; }
  bool operator()(DataType type) const {
    return absl::StrAppend(&to, "d", static_cast<int>(type), ";"), true;
  }
  bool operator()(const Global& global) const {
    return AppendText('g', global.module, to), AppendText('.', global.name, to), true;
  }
  bool operator()(const Size& size) const {  // Equal to a tuple, as in Python.
    to.push_back('(');
    for (const int64_t dimension : size.dimensions) AppendNumber(dimension, to);
    to.push_back(')');
    return true;
  }
  bool operator()(const Tuple& tuple) const { return depth < kKeyDepth && AppendTuple(tuple, depth, to); }
  // These equal themselves. Whether they equal anything else only Python could tell.
  bool operator()(const Object& object) const { return AppendAddress(&object, to), true; }
  bool operator()(const torch::Set& set) const { return set.frozen && (AppendAddress(&set, to), true); }
  template <typename Other>
  bool operator()(const Other&) const {
    return false;
  }
};

bool AppendIdentity(const Value& key, int depth, std::string& to) {
  return key.Visit(IdentityAppender{depth, to});
}

std::string IdentityOfText(std::string_view text) {
  std::string identity;
  AppendText('s', text, identity);
  return identity;
}

std::string IdentityOfNumber(int64_t number) {
  std::string identity;
  AppendNumber(number, identity);
  return identity;
}

// a + b * c of non-negative numbers. nullopt if it exceeds 63 bits.
std::optional<int64_t> MultiplyAdd(int64_t a, int64_t b, int64_t c) {
  int64_t product, sum;
  if (__builtin_mul_overflow(b, c, &product) || __builtin_add_overflow(a, product, &sum)) return std::nullopt;
  return sum;
}

}  // namespace

std::optional<std::string> KeyIdentity(const Value& key) {
  std::string identity;
  return AppendIdentity(key, 0, identity) ? std::optional(std::move(identity)) : std::nullopt;
}

Dict::Dict(const Dict& other)
    : ordered(other.ordered),
      attributes(other.attributes),
      entries_(other.entries_),
      index_(other.index_ ? std::make_unique<std::map<std::string, size_t>>(*other.index_) : nullptr) {}

Dict& Dict::operator=(const Dict& other) { return *this = Dict(other); }

std::optional<size_t> Dict::IndexOf(const std::string& identity) const {
  if (index_) {
    const auto found = index_->find(identity);
    return found != index_->end() ? std::optional(found->second) : std::nullopt;
  }
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (KeyIdentity(*entries_[i].first) == identity) return i;
  }
  return std::nullopt;
}

void Dict::Put(std::string identity, ValueRef key, ValueRef value) {
  if (const std::optional<size_t> index = IndexOf(identity)) {
    Replace(*index, std::move(value));
    return;
  }
  entries_.emplace_back(std::move(key), std::move(value));
  if (index_) {
    index_->emplace(std::move(identity), entries_.size() - 1);
  } else if (entries_.size() > kFewKeys) {
    index_ = std::make_unique<std::map<std::string, size_t>>();
    for (size_t i = 0; i < entries_.size(); ++i) index_->emplace(*KeyIdentity(*entries_[i].first), i);
  }
}

ValueRef Dict::Find(std::string_view key) const {
  const std::optional<size_t> index = IndexOf(IdentityOfText(key));
  return index ? entries_[*index].second : nullptr;
}

ValueRef Dict::Find(int64_t key) const {
  const std::optional<size_t> index = IndexOf(IdentityOfNumber(key));
  return index ? entries_[*index].second : nullptr;
}

ValueRef Dict::Find(const Value& key) const {
  const std::optional<std::string> identity = KeyIdentity(key);
  const std::optional<size_t> index = identity ? IndexOf(*identity) : std::nullopt;
  return index ? entries_[*index].second : nullptr;
}

absl::Status Dict::Set(ValueRef key, ValueRef value) {
  std::optional<std::string> identity = KeyIdentity(*key);
  if (!identity)
    return InvalidArgument(absl::StrCat("a ", std::string(KindOf(*key)), " as the key of a dict"));
  Put(*std::move(identity), std::move(key), std::move(value));
  return absl::OkStatus();
}

void Dict::Set(std::string_view key, ValueRef value) {
  Put(IdentityOfText(key), MakeString(key), std::move(value));
}

void Dict::Set(int64_t key, ValueRef value) { Put(IdentityOfNumber(key), MakeInt(key), std::move(value)); }

int64_t Tensor::elements() const {
  int64_t product = 1;
  for (const int64_t dimension : shape) product *= dimension;
  return product;
}

bool Tensor::is_contiguous() const {
  if (std::ranges::find(shape, 0) != shape.end()) return true;
  int64_t expected = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    if (shape[i] != 1 && stride[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

int64_t Tensor::file_offset() const {
  if (std::ranges::find(shape, 0) != shape.end()) return storage->file_offset;
  return storage->file_offset + offset * InfoOf(dtype).item_bytes;
}

std::vector<int64_t> ContiguousStride(const std::vector<int64_t>& shape) {
  std::vector<int64_t> stride(shape.size());
  int64_t step = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    stride[i] = step;
    step *= std::max<int64_t>(shape[i], 1);
  }
  return stride;
}

Tensor NewTensor(DataType dtype, std::vector<int64_t> shape) {
  Tensor tensor;
  tensor.dtype = dtype;
  tensor.stride = ContiguousStride(shape);
  tensor.shape = std::move(shape);
  tensor.storage = std::make_shared<Storage>();
  tensor.storage->bytes = tensor.elements() * InfoOf(dtype).item_bytes;
  return tensor;
}

absl::Status CheckTensor(const Tensor& tensor) {
  if (tensor.storage == nullptr || tensor.storage->bytes < 0)
    return InvalidArgument("a tensor without a storage");
  if (tensor.shape.size() != tensor.stride.size()) {
    return InvalidArgument(absl::StrCat("a tensor of ", tensor.shape.size(), " dimensions with ",
                                        tensor.stride.size(), " strides"));
  }
  if (tensor.offset < 0) return InvalidArgument(absl::StrCat("a tensor whose offset is ", tensor.offset));
  const int64_t item = InfoOf(tensor.dtype).item_bytes;
  bool empty = false;
  std::optional<int64_t> bytes = item;          // Of a contiguous tensor of this shape.
  std::optional<int64_t> last = tensor.offset;  // The index of the farthest element.
  for (size_t i = 0; i < tensor.shape.size(); ++i) {
    const int64_t dimension = tensor.shape[i], step = tensor.stride[i];
    if (dimension < 0) return InvalidArgument(absl::StrCat("a tensor with a dimension of ", dimension));
    if (step < 0) return InvalidArgument(absl::StrCat("a tensor with a stride of ", step));
    empty = empty || dimension == 0;
    if (bytes) bytes = MultiplyAdd(0, *bytes, std::max<int64_t>(dimension, 1));
    if (last && dimension > 0) last = MultiplyAdd(*last, dimension - 1, step);
  }
  if (!bytes) return InvalidArgument("a tensor whose shape has more than 2^63 bytes");
  const std::optional<int64_t> end = last ? MultiplyAdd(item, *last, item) : std::nullopt;
  if (!empty && (!end || *end > tensor.storage->bytes)) {
    return InvalidArgument(absl::StrCat("a tensor that ends at byte ",
                                        end ? absl::StrCat(*end) : "2^63 and more", " of a storage of ",
                                        tensor.storage->bytes, " bytes"));
  }
  return absl::OkStatus();
}

namespace {

struct KindNamer {
  std::string_view operator()(const None&) const { return "None"; }
  std::string_view operator()(bool) const { return "bool"; }
  std::string_view operator()(int64_t) const { return "int"; }
  std::string_view operator()(const BigInt&) const { return "int"; }
  std::string_view operator()(double) const { return "float"; }
  std::string_view operator()(const std::string&) const { return "str"; }
  std::string_view operator()(const Bytes&) const { return "bytes"; }
  std::string_view operator()(const List&) const { return "list"; }
  std::string_view operator()(const Tuple&) const { return "tuple"; }
  std::string_view operator()(const torch::Set& set) const { return set.frozen ? "frozenset" : "set"; }
  std::string_view operator()(const Dict& dict) const { return dict.ordered ? "OrderedDict" : "dict"; }
  std::string_view operator()(const Size&) const { return "torch.Size"; }
  std::string_view operator()(DataType) const { return "torch.dtype"; }
  std::string_view operator()(const Tensor&) const { return "tensor"; }
  std::string_view operator()(const BareStorage&) const { return "storage"; }
  std::string_view operator()(const TensorReference&) const { return "TensorReference"; }
  std::string_view operator()(const InternalTensorReference&) const { return "_InternalTensorReference"; }
  std::string_view operator()(const Global&) const { return "class or function"; }
  std::string_view operator()(const Object& object) const { return object.callable.name; }
};

}  // namespace

std::string_view KindOf(const Value& value) { return value.Visit(KindNamer()); }

}  // namespace ckptd::torch
