#include "client/python/native/non_finite.h"

#include <algorithm>

namespace ckptd {
namespace {

// Counts the numbers whose bits under kMask equal kValue.
//
// It counts in the numbers' own type, block by block, so that the compiler turns the loop into vector
// instructions: a block has no more numbers than that type can count.
template <typename T, T kMask, T kValue>
[[gnu::always_inline]] inline uint64_t Count(const void* data, uint64_t bytes) {
  typedef T Unaligned __attribute__((aligned(1), may_alias));
  constexpr uint64_t kBlock = sizeof(T) == 1 ? 128 : 16384;
  const auto* numbers = static_cast<const Unaligned*>(data);
  uint64_t total = 0;
  for (uint64_t left = bytes / sizeof(T); left > 0;) {
    const uint64_t n = std::min(left, kBlock);
    T found = 0;
    for (uint64_t i = 0; i < n; ++i)
      found = static_cast<T>(found + static_cast<T>((numbers[i] & kMask) == kValue));
    total += found;
    numbers += n;
    left -= n;
  }
  return total;
}

[[gnu::always_inline]] inline uint64_t CountAny(FloatFormat format, const void* data, uint64_t bytes) {
  switch (format) {
    case FloatFormat::kNone:
      return 0;
    case FloatFormat::kFloat16:
      return Count<uint16_t, 0x7c00, 0x7c00>(data, bytes);
    case FloatFormat::kBFloat16:
      return Count<uint16_t, 0x7f80, 0x7f80>(data, bytes);
    case FloatFormat::kFloat32:
      return Count<uint32_t, 0x7f800000, 0x7f800000>(data, bytes);
    case FloatFormat::kFloat64:
      return Count<uint64_t, 0x7ff0000000000000, 0x7ff0000000000000>(data, bytes);
    case FloatFormat::kFloat8E4M3Fn:
      return Count<uint8_t, 0x7f, 0x7f>(data, bytes);
    case FloatFormat::kFloat8E5M2:
      return Count<uint8_t, 0x7c, 0x7c>(data, bytes);
    case FloatFormat::kFloat8FnUz:
      return Count<uint8_t, 0xff, 0x80>(data, bytes);
  }
  return 0;
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) uint64_t CountByAvx2(FloatFormat format, const void* data, uint64_t bytes) {
  return CountAny(format, data, bytes);
}
#endif

}  // namespace

uint64_t CountInfinite(FloatFormat format, const void* data, uint64_t bytes) {
  switch (format) {
    case FloatFormat::kFloat16:
      return Count<uint16_t, 0x7fff, 0x7c00>(data, bytes);
    case FloatFormat::kBFloat16:
      return Count<uint16_t, 0x7fff, 0x7f80>(data, bytes);
    case FloatFormat::kFloat32:
      return Count<uint32_t, 0x7fffffff, 0x7f800000>(data, bytes);
    case FloatFormat::kFloat64:
      return Count<uint64_t, 0x7fffffffffffffff, 0x7ff0000000000000>(data, bytes);
    case FloatFormat::kFloat8E5M2:
      return Count<uint8_t, 0x7f, 0x7c>(data, bytes);
    case FloatFormat::kNone:
    case FloatFormat::kFloat8E4M3Fn:
    case FloatFormat::kFloat8FnUz:
      return 0;
  }
  return 0;
}

uint64_t CountNonFinite(FloatFormat format, const void* data, uint64_t bytes) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return CountByAvx2(format, data, bytes);
#endif
  return CountAny(format, data, bytes);
}

}  // namespace ckptd
