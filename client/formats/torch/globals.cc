#include "client/formats/torch/globals.h"

#include <algorithm>
#include <iterator>
#include <span>

namespace ckptd::torch {
namespace {

struct Entry {
  std::string_view module;
  std::string_view name;
  Role role;
};

// What torch.save writes for the state of modules, optimizers, schedulers and random generators, what torch's
// distributed checkpoints say of their files (.metadata), and plain Python data. A class may be added only if making an object of it has no other effect.
constexpr Entry kEntries[] = {
    {"collections", "OrderedDict", Role::kOrderedDict},
    {"collections", "Counter", Role::kCarried},
    {"collections", "defaultdict", Role::kCarried},
    {"collections", "deque", Role::kCarried},
    {"builtins", "set", Role::kSet},
    {"builtins", "frozenset", Role::kFrozenSet},
    {"builtins", "bytes", Role::kBytes},
    {"builtins", "bytearray", Role::kCarried},
    {"builtins", "complex", Role::kCarried},
    {"builtins", "range", Role::kCarried},
    {"builtins", "slice", Role::kCarried},
    {"builtins", "getattr", Role::kGetAttribute},
    {"builtins", "object", Role::kNamed},
    {"builtins", "bool", Role::kNamed},
    {"builtins", "int", Role::kNamed},
    {"builtins", "float", Role::kNamed},
    {"builtins", "str", Role::kNamed},
    {"builtins", "list", Role::kNamed},
    {"builtins", "tuple", Role::kNamed},
    {"builtins", "dict", Role::kNamed},
    {"_codecs", "encode", Role::kEncode},
    {"copyreg", "_reconstructor", Role::kReconstructor},
    {"torch", "Size", Role::kSize},
    {"torch", "Tensor", Role::kNamed},
    {"torch", "device", Role::kCarried},
    {"torch", "per_tensor_affine", Role::kNamed},
    {"torch", "per_tensor_symmetric", Role::kNamed},
    {"torch", "per_channel_affine", Role::kNamed},
    {"torch", "per_channel_symmetric", Role::kNamed},
    {"torch", "per_channel_affine_float_qparams", Role::kNamed},
    {"torch", "UntypedStorage", Role::kStorageClass},
    {"torch.storage", "UntypedStorage", Role::kStorageClass},
    {"torch.nn.parameter", "Parameter", Role::kNamed},
    {"torch.serialization", "_get_layout", Role::kCarried},
    {"torch._utils", "_rebuild_tensor_v2", Role::kTensor},
    {"torch._utils", "_rebuild_tensor_v3", Role::kTensorV3},
    {"torch._utils", "_rebuild_parameter", Role::kParameter},
    {"torch._utils", "_rebuild_parameter_with_state", Role::kParameterWithState},
    {"torch._utils", "_rebuild_sparse_tensor", Role::kCarried},
    {"torch._utils", "_rebuild_sparse_csr_tensor", Role::kCarried},
    {"torch._utils", "_rebuild_qtensor", Role::kCarried},
    {"torch._utils", "_rebuild_meta_tensor_no_storage", Role::kCarried},
    {"torch._tensor", "_rebuild_from_type_v2", Role::kTensorOfType},
    {"numpy", "ndarray", Role::kNamed},
    {"numpy", "dtype", Role::kCarried},
    {"numpy.core.numeric", "_frombuffer", Role::kCarried},
    {"numpy._core.numeric", "_frombuffer", Role::kCarried},
    {"numpy.core.multiarray", "_reconstruct", Role::kCarried},
    {"numpy.core.multiarray", "scalar", Role::kCarried},
    {"numpy._core.multiarray", "_reconstruct", Role::kCarried},
    {"numpy._core.multiarray", "scalar", Role::kCarried},
    {"argparse", "Namespace", Role::kCarried},
    {"deepspeed.runtime.zero.config", "ZeroStageEnum", Role::kEnumeration},
    {"deepspeed.runtime.fp16.loss_scaler", "LossScaler", Role::kCarried},
    {"deepspeed.runtime.fp16.loss_scaler", "DynamicLossScaler", Role::kCarried},
    {"deepspeed.utils.tensor_fragment", "fragment_address", Role::kCarried},
    {"deepspeed.checkpoint.universal_checkpoint", "SubparamShape", Role::kCarried},
    {"torch.distributed.checkpoint.metadata", "Metadata", Role::kCarried},
    {"torch.distributed.checkpoint.metadata", "MetadataIndex", Role::kCarried},
    {"torch.distributed.checkpoint.metadata", "TensorStorageMetadata", Role::kCarried},
    {"torch.distributed.checkpoint.metadata", "BytesStorageMetadata", Role::kCarried},
    {"torch.distributed.checkpoint.metadata", "ChunkStorageMetadata", Role::kCarried},
    {"torch.distributed.checkpoint.metadata", "TensorProperties", Role::kCarried},
    {"torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING", Role::kEnumeration},
    {"torch.distributed.checkpoint.metadata", "StorageMeta", Role::kCarried},
    {"torch.distributed.checkpoint.filesystem", "_StorageInfo", Role::kCarried},
    {"torch.distributed._shard.sharded_tensor.metadata", "TensorProperties", Role::kCarried},
    {"torch.distributed._shard.sharded_tensor.metadata", "MEM_FORMAT_ENCODING", Role::kEnumeration},
    {"pathlib", "PosixPath", Role::kCarried},
    {"torch_xla.utils.serialization", "TensorReference", Role::kTensorReference},
    {"neuronx_distributed.trainer.checkpoint", "_InternalTensorReference", Role::kInternalTensorReference},
};

struct Renamed {
  std::string_view python2;
  std::string_view python3;
};
constexpr Renamed kModules[] = {{"__builtin__", "builtins"}, {"copy_reg", "copyreg"}};
constexpr Renamed kBuiltins[] = {{"long", "int"}, {"unicode", "str"}, {"xrange", "range"}};

std::string_view Translated(std::string_view name, std::span<const Renamed> table,
                            std::string_view Renamed::*from, std::string_view Renamed::*to) {
  const auto found = std::ranges::find(table, name, from);
  return found != table.end() ? *found.*to : name;
}

GlobalName Translated(GlobalName name, std::string_view Renamed::*from, std::string_view Renamed::*to) {
  const bool builtin = name.module == kModules[0].*from;
  return {Translated(name.module, kModules, from, to),
          builtin ? Translated(name.name, kBuiltins, from, to) : name.name};
}

}  // namespace

std::optional<KnownGlobal> FindGlobal(std::string_view module, std::string_view name) {
  const auto* entry = std::ranges::find_if(
      kEntries, [&](const Entry& known) { return known.name == name && known.module == module; });
  if (entry != std::end(kEntries)) return KnownGlobal{entry->role, std::nullopt};
  if (module != "torch") return std::nullopt;
  if (const std::optional<DataType> dtype = DataTypeOfTorchName(name))
    return KnownGlobal{Role::kDataType, dtype};
  if (const std::optional<DataType> dtype = DataTypeOfStorageClass(name)) {
    return KnownGlobal{Role::kStorageClass, dtype};
  }
  return std::nullopt;
}

bool NamesMember(const Tuple& arguments) {
  if (arguments.items.size() != 2 || arguments.items[1]->As<std::string>() == nullptr) return false;
  const Global* type = arguments.items[0]->As<Global>();
  const std::optional<KnownGlobal> known =
      type != nullptr ? FindGlobal(type->module, type->name) : std::nullopt;
  return known && known->role == Role::kEnumeration;
}

GlobalName NameInPython3(GlobalName name) { return Translated(name, &Renamed::python2, &Renamed::python3); }

GlobalName NameInPython2(GlobalName name) { return Translated(name, &Renamed::python3, &Renamed::python2); }

}  // namespace ckptd::torch
