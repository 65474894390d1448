// The content of a torch.save file as a tree of plain data: what its pickle describes, without running it.
//
// Values are held by shared_ptr, and sharing is preserved in both directions: a list that an object holds
// twice is one Value held twice, and two tensors over the same bytes have one Storage. A change to a shared
// value affects all of its holders. A tree has no cycles: reader and writer refuse them.
//
// Not thread-safe, but several threads may read one tree.
#ifndef CKPTD_CLIENT_FORMATS_TORCH_VALUE_H_
#define CKPTD_CLIENT_FORMATS_TORCH_VALUE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "client/formats/data_type.h"

namespace ckptd::torch {

class Value;
using ValueRef = std::shared_ptr<Value>;  // Never null unless a comment says so.

struct None {};

// An int beyond 64 bits: two's complement, little-endian, in the fewest bytes. It is carried, not computed
// with.
struct BigInt {
  std::string bytes;
};

struct Bytes {
  std::string bytes;
};

struct List {
  std::vector<ValueRef> items;
};

struct Tuple {
  std::vector<ValueRef> items;
};

// In the order of the file.
struct Set {
  std::vector<ValueRef> items;
  bool frozen = false;
};

// A dict or an OrderedDict, in the order of insertion. Keys may be None, bool, int, float, str, bytes,
// torch.Size, dtypes, globals, frozensets, Objects, and tuples of these. As in Python, 1, 1.0 and True are
// the same key. A frozenset or an Object equals only itself.
class Dict {
 public:
  using Entry = std::pair<ValueRef, ValueRef>;

  Dict() = default;
  Dict(const Dict& other);  // Shares keys and values with `other`.
  Dict(Dict&&) = default;
  Dict& operator=(const Dict& other);
  Dict& operator=(Dict&&) = default;

  bool ordered = false;  // collections.OrderedDict.
  // Attributes of an OrderedDict as an object: Module.state_dict() sets `_metadata`. Null: none.
  ValueRef attributes;

  const std::vector<Entry>& entries() const { return entries_; }
  size_t size() const { return entries_.size(); }
  bool empty() const { return entries_.empty(); }
  // Null if the key is not in the dict.
  ValueRef Find(std::string_view key) const;
  ValueRef Find(int64_t key) const;
  ValueRef Find(const Value& key) const;
  // An existing key keeps its place and gets the new value. INVALID_ARGUMENT if Python could not hash the
  // key.
  absl::Status Set(ValueRef key, ValueRef value);
  void Set(std::string_view key, ValueRef value);
  void Set(int64_t key, ValueRef value);
  // Replaces the value of an entry. The key stays.
  void Replace(size_t index, ValueRef value) { entries_[index].second = std::move(value); }

 private:
  std::optional<size_t> IndexOf(const std::string& identity) const;
  void Put(std::string identity, ValueRef key, ValueRef value);

  std::vector<Entry> entries_;
  // Identity of a key -> its index. Null for a dict of few keys.
  std::unique_ptr<std::map<std::string, size_t>> index_;
};

// A string that is equal for two keys exactly if Python takes them for the same. nullopt for a value that
// Python cannot hash, and for tuples nested deeper than a few levels.
std::optional<std::string> KeyIdentity(const Value& key);

// torch.Size.
struct Size {
  std::vector<int64_t> dimensions;
};

// A run of bytes that tensors lie in. Its identity is its address. A storage read from a file knows where its
// bytes are there. To write one, only `bytes` is needed.
struct Storage {
  int64_t bytes = 0;
  std::string location = "cpu";  // Where torch.load puts it by default: "cpu", "cuda:0", ...
  std::string key;               // Of its record data/<key>. The writer gives new keys.
  int64_t file_offset = -1;      // Of its first byte in the file it was read from; -1: none.
};
using StorageRef = std::shared_ptr<Storage>;

// A strided tensor. All of its elements lie in its storage.
struct Tensor {
  StorageRef storage;
  DataType dtype = DataType::kFloat32;
  int64_t offset = 0;           // Of its first element in the storage, in elements.
  std::vector<int64_t> shape;   // Empty: 0 dimensions, one element.
  std::vector<int64_t> stride;  // In elements; as many as `shape`, none negative. 0: an expanded view.
  bool requires_grad = false;
  bool parameter = false;  // torch.nn.Parameter.
  // What torch writes beside a tensor; null: nothing. A dict of operations to apply to the stored bits
  // ("conj", "neg": True), and attributes that a program has set on the tensor.
  ValueRef math_bits;
  ValueRef attributes;

  int64_t elements() const;    // 1 for 0 dimensions.
  bool is_contiguous() const;  // True if the elements are in order and without gaps; also if there are none.
  // Of its first element in the file that its storage was read from. For an empty tensor that of its storage.
  int64_t file_offset() const;
};

// The strides of a contiguous tensor, in elements.
std::vector<int64_t> ContiguousStride(const std::vector<int64_t>& shape);
// A tensor with a storage of its own, of exactly its size.
// Precondition: the product of `shape` and the item's size is below 2^63.
Tensor NewTensor(DataType dtype, std::vector<int64_t> shape);
// INVALID_ARGUMENT if the tensor exceeds its storage, or its shape, stride or offset is impossible.
absl::Status CheckTensor(const Tensor& tensor);

// A storage by itself, not within a tensor.
struct BareStorage {
  StorageRef storage;
  std::optional<DataType> dtype;  // Unset: torch.UntypedStorage.
};

// torch_xla.utils.serialization.TensorReference: the tensor is in a file of its own, `tensor_<tid>.pt`.
struct TensorReference {
  int64_t tid = 0;
};

// neuronx_distributed.trainer.checkpoint._InternalTensorReference: NxD leaves it behind in places where it
// meant to write a TensorReference.
struct InternalTensorReference {
  int64_t tid = 0;
  std::vector<int64_t> shape;
  DataType dtype = DataType::kFloat32;
  bool expert_model_parallel = false;
};

// A class or function by its name, not called, such as "builtins" "int". Modules have their names in Python
// 3.
struct Global {
  std::string module;
  std::string name;
};

// An object of a class on the allow-list that ckptd carries without looking into it: torch.device,
// defaultdict, a complex number, a numpy array, a sparse tensor. It records how Python would make the object.
// Nothing of that is done; it is written back as it was read.
struct Object {
  Global callable;
  bool by_new = false;          // callable.__new__(...), not callable(...).
  ValueRef arguments;           // A tuple.
  ValueRef state;               // The argument of __setstate__, or the new __dict__. Null: none.
  std::vector<ValueRef> items;  // Appended to the object.
  std::vector<std::pair<ValueRef, ValueRef>> entries;  // Set in the object by key.
};

// One value: any of the types above, or bool, int64_t, double, DataType (torch.float32 itself), or
// std::string (a str in UTF-8, with Python's lone surrogates).
class Value {
 public:
  template <typename T>
  explicit Value(std::in_place_type_t<T>, T data) {
    Become(std::move(data));
  }
  Value(const Value&) = delete;
  Value& operator=(const Value&) = delete;

  // Null if the value is of another type. Example: value.As<Dict>().
  template <typename T>
  const T* As() const {
    return const_cast<Value*>(this)->As<T>();
  }
  template <typename T>
  T* As() {
    if constexpr (kBoxed<T>) {
      auto* box = std::get_if<std::unique_ptr<T>>(&data_);
      return box != nullptr ? box->get() : nullptr;
    } else {
      return std::get_if<T>(&data_);
    }
  }
  // Replaces the content, also by another type, for all holders.
  template <typename T>
  void Become(T data) {
    if constexpr (kBoxed<T>) {
      data_.emplace<std::unique_ptr<T>>(std::make_unique<T>(std::move(data)));
    } else {
      data_.emplace<T>(std::move(data));
    }
  }
  // Calls `visitor` with the content.
  template <typename Visitor>
  auto Visit(Visitor&& visitor) const {
    return std::visit([&](const auto& held) { return visitor(Unboxed(held)); }, data_);
  }

 private:
  friend class Unpickler;

  // Large types are boxed, so that an int stays small.
  template <typename T>
  static constexpr bool kBoxed =
      std::is_same_v<T, Dict> || std::is_same_v<T, Tensor> || std::is_same_v<T, InternalTensorReference> ||
      std::is_same_v<T, Global> || std::is_same_v<T, Object>;
  template <typename T>
  static const T& Unboxed(const T& held) {
    return held;
  }
  template <typename T>
  static const T& Unboxed(const std::unique_ptr<T>& held) {
    return *held;
  }

  std::variant<None, bool, int64_t, double, BigInt, Bytes, List, Tuple, Set, Size, DataType, BareStorage,
               TensorReference, std::string, std::unique_ptr<Dict>, std::unique_ptr<Tensor>,
               std::unique_ptr<InternalTensorReference>, std::unique_ptr<Global>, std::unique_ptr<Object>>
      data_;
  // Used by the unpickler: the levels beneath this value, whether something holds it, and its size as a tree
  // without sharing.
  uint32_t depth_ = 0;
  bool held_ = false;
  int64_t objects_ = 1;
  int64_t string_bytes_ = 0;
};

template <typename T>
ValueRef Make(T data) {
  return std::make_shared<Value>(std::in_place_type<T>, std::move(data));
}
inline ValueRef MakeInt(int64_t value) { return Make<int64_t>(value); }
inline ValueRef MakeString(std::string_view text) { return Make<std::string>(std::string(text)); }

// The name of the type for messages: "dict", "tensor", ...
std::string_view KindOf(const Value& value);

}  // namespace ckptd::torch
#endif  // CKPTD_CLIENT_FORMATS_TORCH_VALUE_H_
