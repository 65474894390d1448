// The allow-list: every class and function that a pickle may name, and what ckptd makes of it. None of them
// is ever called, or even exists here.
#ifndef CKPTD_CLIENT_FORMATS_TORCH_GLOBALS_H_
#define CKPTD_CLIENT_FORMATS_TORCH_GLOBALS_H_

#include <optional>
#include <string_view>

#include "client/formats/data_type.h"
#include "client/formats/torch/value.h"

namespace ckptd::torch {

enum class Role {
  kNamed,     // May be held by name, but not called.
  kCarried,   // Its result becomes an Object.
  kDataType,  // torch.float32.
  kStorageClass,
  // The results of these have types of their own in value.h.
  kOrderedDict,
  kSet,
  kFrozenSet,
  kBytes,          // bytes(), which Python writes for empty bytes.
  kEncode,         // _codecs.encode(text, "latin1"), for all others.
  kReconstructor,  // copyreg's function, for __new__ in protocols 0 and 1.
  kEnumeration,    // A subclass of enum.Enum. A member becomes an Object, by value or by name.
  kGetAttribute,   // getattr(enumeration, name), as Python 3.11 writes a member.
  kSize,
  kTensor,    // _rebuild_tensor_v2.
  kTensorV3,  // With a dtype that has no storage class.
  kTensorOfType,
  kParameter,
  kParameterWithState,
  kTensorReference,
  kInternalTensorReference,
};

struct KnownGlobal {
  Role role;
  std::optional<DataType> dtype;  // For kDataType and kStorageClass; unset for an untyped storage.
};

// Finds a global by its names in Python 3. nullopt if it is not on the list.
std::optional<KnownGlobal> FindGlobal(std::string_view module, std::string_view name);

// True if getattr(*arguments) is a member of a kEnumeration by its name. Any other use of getattr would reach
// everything that a module holds.
bool NamesMember(const Tuple& arguments);

struct GlobalName {
  std::string_view module;
  std::string_view name;
};
// Protocols 0 to 2 use the names of Python 2 ("__builtin__" "long"), the others those of Python 3.
GlobalName NameInPython3(GlobalName name);
GlobalName NameInPython2(GlobalName name);

}  // namespace ckptd::torch
#endif  // CKPTD_CLIENT_FORMATS_TORCH_GLOBALS_H_
