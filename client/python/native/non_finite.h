// Counts the numbers in a buffer that are not finite: NaN or an infinity.
#ifndef CKPTD_CLIENT_PYTHON_NATIVE_NON_FINITE_H_
#define CKPTD_CLIENT_PYTHON_NATIVE_NON_FINITE_H_

#include <cstdint>

namespace ckptd {

// How a buffer's bytes are floating-point numbers. The values are those of ckptd._memory.native.
enum class FloatFormat : uint8_t {
  kNone = 0,  // They are none: nothing is counted.
  kFloat16 = 1,
  kBFloat16 = 2,
  kFloat32 = 3,
  kFloat64 = 4,
  kFloat8E4M3Fn = 5,  // Has no infinity.
  kFloat8E5M2 = 6,
  kFloat8FnUz = 7,  // Both formats whose only such value is NaN, 0x80.
};

// Bytes beyond the last whole number do not count. The data needs no alignment.
uint64_t CountNonFinite(FloatFormat format, const void* data, uint64_t bytes);
// Those of them that are infinities.
uint64_t CountInfinite(FloatFormat format, const void* data, uint64_t bytes);

}  // namespace ckptd
#endif  // CKPTD_CLIENT_PYTHON_NATIVE_NON_FINITE_H_
