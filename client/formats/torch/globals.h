// The allow-list: every class and function that a pickle may name, and what naming it means here. None of
// them is ever run, or is even there to be run.
#ifndef CKPTD_CLIENT_FORMATS_TORCH_GLOBALS_H_
#define CKPTD_CLIENT_FORMATS_TORCH_GLOBALS_H_

#include <optional>
#include <string_view>

#include "client/formats/data_type.h"

namespace ckptd::torch {

enum class Role {
  kNamed,     // May be held by its name, and not called.
  kCarried,   // What it makes becomes an Object.
  kDataType,  // torch.float32.
  kStorageClass,
  // What these make has a type of its own in value.h.
  kOrderedDict,
  kSet,
  kFrozenSet,
  kBytes,          // bytes(): what Python writes for an empty one.
  kEncode,         // _codecs.encode(text, "latin1"): any other.
  kReconstructor,  // copyreg: how protocols 0 and 1 say __new__.
  kSize,
  kTensor,    // _rebuild_tensor_v2.
  kTensorV3,  // With a dtype that no storage class stands for.
  kTensorOfType,
  kParameter,
  kParameterWithState,
  kTensorReference,
  kInternalTensorReference,
};

struct KnownGlobal {
  Role role;
  std::optional<DataType> dtype;  // Of kDataType; of kStorageClass, none for an untyped one.
};

// Of a module by its name in Python 3; nullopt when it is not on the list.
std::optional<KnownGlobal> FindGlobal(std::string_view module, std::string_view name);

struct GlobalName {
  std::string_view module;
  std::string_view name;
};
// Protocols 0 to 2 have the names of Python 2 ("__builtin__" "long"), the others those of Python 3.
GlobalName NameInPython3(GlobalName name);
GlobalName NameInPython2(GlobalName name);

}  // namespace ckptd::torch
#endif  // CKPTD_CLIENT_FORMATS_TORCH_GLOBALS_H_
