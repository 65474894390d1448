#include "client/formats/data_type.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

namespace ckptd {
namespace {

constexpr DataTypeInfo kTypes[] = {
    {DataType::kFloat64, 8, "float64", "DoubleStorage", "F64"},
    {DataType::kFloat32, 4, "float32", "FloatStorage", "F32"},
    {DataType::kFloat16, 2, "float16", "HalfStorage", "F16"},
    {DataType::kBFloat16, 2, "bfloat16", "BFloat16Storage", "BF16"},
    {DataType::kInt64, 8, "int64", "LongStorage", "I64"},
    {DataType::kInt32, 4, "int32", "IntStorage", "I32"},
    {DataType::kInt16, 2, "int16", "ShortStorage", "I16"},
    {DataType::kInt8, 1, "int8", "CharStorage", "I8"},
    {DataType::kUInt64, 8, "uint64", "", "U64"},
    {DataType::kUInt32, 4, "uint32", "", "U32"},
    {DataType::kUInt16, 2, "uint16", "", "U16"},
    {DataType::kUInt8, 1, "uint8", "ByteStorage", "U8"},
    {DataType::kBool, 1, "bool", "BoolStorage", "BOOL"},
    {DataType::kComplex128, 16, "complex128", "ComplexDoubleStorage", ""},
    {DataType::kComplex64, 8, "complex64", "ComplexFloatStorage", "C64"},
    {DataType::kComplex32, 4, "complex32", "", ""},
    {DataType::kFloat8E4M3Fn, 1, "float8_e4m3fn", "", "F8_E4M3"},
    {DataType::kFloat8E5M2, 1, "float8_e5m2", "", "F8_E5M2"},
    {DataType::kFloat8E4M3FnUz, 1, "float8_e4m3fnuz", "", "F8_E4M3FNUZ"},
    {DataType::kFloat8E5M2FnUz, 1, "float8_e5m2fnuz", "", "F8_E5M2FNUZ"},
    {DataType::kFloat8E8M0Fnu, 1, "float8_e8m0fnu", "", "F8_E8M0"},
    {DataType::kFloat4E2M1FnX2, 1, "float4_e2m1fn_x2", "", "F4"},
    {DataType::kBits8, 1, "bits8", "", ""},
    {DataType::kBits16, 2, "bits16", "", ""},
    {DataType::kBits1x8, 1, "bits1x8", "", ""},
    {DataType::kBits2x4, 1, "bits2x4", "", ""},
    {DataType::kBits4x2, 1, "bits4x2", "", ""},
    {DataType::kQUInt8, 1, "quint8", "QUInt8Storage", ""},
    {DataType::kQInt8, 1, "qint8", "QInt8Storage", ""},
    {DataType::kQInt32, 4, "qint32", "QInt32Storage", ""},
    {DataType::kQUInt4x2, 1, "quint4x2", "QUInt4x2Storage", ""},
    {DataType::kQUInt2x4, 1, "quint2x4", "QUInt2x4Storage", ""},
};

constexpr bool EachIsInItsPlace() {
  for (size_t i = 0; i < std::size(kTypes); ++i) {
    if (static_cast<size_t>(kTypes[i].type) != i) return false;
  }
  return true;
}
static_assert(EachIsInItsPlace());

struct OtherName {
  std::string_view name;
  DataType type;
};
constexpr OtherName kOtherNames[] = {
    {"double", DataType::kFloat64},     {"float", DataType::kFloat32},    {"half", DataType::kFloat16},
    {"long", DataType::kInt64},         {"int", DataType::kInt32},        {"short", DataType::kInt16},
    {"cdouble", DataType::kComplex128}, {"cfloat", DataType::kComplex64}, {"chalf", DataType::kComplex32},
};

std::optional<DataType> Named(std::string_view name, std::string_view DataTypeInfo::*field) {
  if (name.empty()) return std::nullopt;
  const auto* found = std::ranges::find(kTypes, name, field);
  return found != std::end(kTypes) ? std::optional(found->type) : std::nullopt;
}

}  // namespace

const DataTypeInfo& InfoOf(DataType type) { return kTypes[static_cast<size_t>(type)]; }

std::span<const DataTypeInfo> AllDataTypes() { return kTypes; }

std::optional<DataType> DataTypeOfTorchName(std::string_view name) {
  const auto* found = std::ranges::find(kOtherNames, name, &OtherName::name);
  return found != std::end(kOtherNames) ? std::optional(found->type) : Named(name, &DataTypeInfo::torch_name);
}

std::optional<DataType> DataTypeOfStorageClass(std::string_view name) {
  return Named(name, &DataTypeInfo::storage_class);
}

std::optional<DataType> DataTypeOfSafetensorsName(std::string_view name) {
  return Named(name, &DataTypeInfo::safetensors_name);
}

}  // namespace ckptd
