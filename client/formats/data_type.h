// The element types of tensors, with their names in torch and safetensors.
#ifndef CKPTD_CLIENT_FORMATS_DATA_TYPE_H_
#define CKPTD_CLIENT_FORMATS_DATA_TYPE_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace ckptd {

enum class DataType : uint8_t {
  kFloat64,
  kFloat32,
  kFloat16,
  kBFloat16,
  kInt64,
  kInt32,
  kInt16,
  kInt8,
  kUInt64,
  kUInt32,
  kUInt16,
  kUInt8,
  kBool,
  kComplex128,
  kComplex64,
  kComplex32,
  kFloat8E4M3Fn,
  kFloat8E5M2,
  kFloat8E4M3FnUz,
  kFloat8E5M2FnUz,
  kFloat8E8M0Fnu,
  kFloat4E2M1FnX2,  // Two numbers in a byte. torch counts the bytes as elements.
  kBits8,
  kBits16,
  kBits1x8,
  kBits2x4,
  kBits4x2,
  kQUInt8,
  kQInt8,
  kQInt32,
  kQUInt4x2,
  kQUInt2x4,
};

struct DataTypeInfo {
  DataType type;
  int item_bytes;
  std::string_view torch_name;        // "float32", as in torch.float32.
  std::string_view storage_class;     // "FloatStorage". Empty if torch uses an UntypedStorage.
  std::string_view safetensors_name;  // "F32". Empty if safetensors has no such type.
};

const DataTypeInfo& InfoOf(DataType type);
std::span<const DataTypeInfo> AllDataTypes();
// By "float32", "FloatStorage" and "F32". The first also accepts torch's aliases: "half", "double", "long",
// ...
std::optional<DataType> DataTypeOfTorchName(std::string_view name);
std::optional<DataType> DataTypeOfStorageClass(std::string_view name);
std::optional<DataType> DataTypeOfSafetensorsName(std::string_view name);

}  // namespace ckptd
#endif  // CKPTD_CLIENT_FORMATS_DATA_TYPE_H_
