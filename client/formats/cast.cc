#include "client/formats/cast.h"

#include <bit>
#include <cstring>

namespace ckptd {
namespace {

constexpr uint32_t kSign32 = 0x8000'0000, kInfinity32 = 0x7F80'0000;

uint16_t BFloat16Of(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & ~kSign32) > kInfinity32) return 0x7FC0;  // Not a number.
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

float OfBFloat16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

uint16_t Float16Of(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & ~kSign32;
  if (magnitude > kInfinity32) return static_cast<uint16_t>(sign | 0x7E00);   // Not a number.
  if (magnitude >= 0x4780'0000) return static_cast<uint16_t>(sign | 0x7C00);  // 65536 and above: infinity.
  if (magnitude >= 0x3880'0000) {  // Normal: the exponent's bias changes from 127 to 15.
    const uint32_t rounded = magnitude + 0xFFF + (magnitude >> 13 & 1);
    return static_cast<uint16_t>(sign | ((rounded - 0x3800'0000) >> 13));
  }
  // Subnormal: adding 0.5 leaves the result, rounded by the processor, in the lowest bits.
  const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
  return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(0.5F)));
}

float OfFloat16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t magnitude = bits & 0x7FFF;
  if (magnitude >= 0x7C00)  // Infinity, or not a number.
    return std::bit_cast<float>(sign | kInfinity32 | (magnitude & 0x3FF) << 13);
  if (magnitude >= 0x400) return std::bit_cast<float>(sign | ((magnitude << 13) + 0x3800'0000));
  const float value = static_cast<float>(magnitude) * 0x1p-24F;  // Subnormal.
  return sign != 0 ? -value : value;
}

template <typename T>
T Load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

struct LoadDouble {
  static constexpr int64_t kBytes = 8;
  static double At(const std::byte* at) { return Load<double>(at); }
};
struct LoadFloat {
  static constexpr int64_t kBytes = 4;
  static float At(const std::byte* at) { return Load<float>(at); }
};
struct LoadFloat16 {
  static constexpr int64_t kBytes = 2;
  static float At(const std::byte* at) { return OfFloat16(Load<uint16_t>(at)); }
};
struct LoadBFloat16 {
  static constexpr int64_t kBytes = 2;
  static float At(const std::byte* at) { return OfBFloat16(Load<uint16_t>(at)); }
};

template <typename T>
struct LoadInteger {
  static constexpr int64_t kBytes = sizeof(T);
  static T At(const std::byte* at) { return Load<T>(at); }
};

template <typename From, typename Store>
void CastAll(const std::byte* from, std::byte* to, int64_t count, Store store) {
  for (int64_t i = 0; i < count; ++i) {
    const auto stored = store(From::At(from + i * From::kBytes));
    std::memcpy(to + i * static_cast<int64_t>(sizeof(stored)), &stored, sizeof(stored));
  }
}

template <typename From>
void CastFrom(DataType type, const std::byte* from, std::byte* to, int64_t count) {
  switch (type) {
    case DataType::kFloat64:
      return CastAll<From>(from, to, count, [](auto value) { return static_cast<double>(value); });
    case DataType::kFloat32:
      return CastAll<From>(from, to, count, [](auto value) { return static_cast<float>(value); });
    case DataType::kFloat16:
      return CastAll<From>(from, to, count, [](auto value) { return Float16Of(static_cast<float>(value)); });
    default:
      return CastAll<From>(from, to, count, [](auto value) { return BFloat16Of(static_cast<float>(value)); });
  }
}

bool IsInteger(DataType type) {
  switch (type) {
    case DataType::kInt64:
    case DataType::kInt32:
    case DataType::kInt16:
    case DataType::kInt8:
    case DataType::kUInt8:
    case DataType::kBool:
      return true;
    default:
      return false;
  }
}

bool IsCastable(DataType type) {
  return type == DataType::kFloat64 || type == DataType::kFloat32 || type == DataType::kFloat16 ||
         type == DataType::kBFloat16;
}

}  // namespace

int64_t Cast::OutputBytes(int64_t input_bytes) const {
  return input_bytes / InfoOf(from).item_bytes * InfoOf(to).item_bytes;
}

int64_t Cast::InputBytes(int64_t output_bytes) const {
  return output_bytes / InfoOf(to).item_bytes * InfoOf(from).item_bytes;
}

bool IsFloatingPoint(DataType type) {
  switch (type) {
    case DataType::kFloat8E4M3Fn:
    case DataType::kFloat8E5M2:
    case DataType::kFloat8E4M3FnUz:
    case DataType::kFloat8E5M2FnUz:
    case DataType::kFloat8E8M0Fnu:
    case DataType::kFloat4E2M1FnX2:
      return true;
    default:
      return IsCastable(type);
  }
}

bool CanCast(const Cast& cast) {
  return cast.is_copy() || (IsCastable(cast.to) && (IsCastable(cast.from) || IsInteger(cast.from)));
}

void CastElements(const Cast& cast, const std::byte* from, std::byte* to, int64_t count) {
  if (cast.is_copy()) {
    std::memcpy(to, from, static_cast<size_t>(count * InfoOf(cast.to).item_bytes));
    return;
  }
  switch (cast.from) {
    case DataType::kFloat64:
      return CastFrom<LoadDouble>(cast.to, from, to, count);
    case DataType::kFloat32:
      return CastFrom<LoadFloat>(cast.to, from, to, count);
    case DataType::kFloat16:
      return CastFrom<LoadFloat16>(cast.to, from, to, count);
    case DataType::kInt64:
      return CastFrom<LoadInteger<int64_t>>(cast.to, from, to, count);
    case DataType::kInt32:
      return CastFrom<LoadInteger<int32_t>>(cast.to, from, to, count);
    case DataType::kInt16:
      return CastFrom<LoadInteger<int16_t>>(cast.to, from, to, count);
    case DataType::kInt8:
      return CastFrom<LoadInteger<int8_t>>(cast.to, from, to, count);
    case DataType::kUInt8:
    case DataType::kBool:
      return CastFrom<LoadInteger<uint8_t>>(cast.to, from, to, count);
    default:
      return CastFrom<LoadBFloat16>(cast.to, from, to, count);
  }
}

}  // namespace ckptd
