// Converts elements to floating-point types, as torch's Tensor.to(dtype) does: rounded to the nearest, ties
// to even.
#ifndef CKPTD_CLIENT_FORMATS_CAST_H_
#define CKPTD_CLIENT_FORMATS_CAST_H_

#include <cstddef>
#include <cstdint>

#include "client/formats/data_type.h"

namespace ckptd {

// What elements become on their way from one file to another. By default their bytes are copied.
struct Cast {
  DataType from = DataType::kUInt8;
  DataType to = DataType::kUInt8;

  bool is_copy() const { return from == to; }
  int64_t OutputBytes(int64_t input_bytes) const;
  int64_t InputBytes(int64_t output_bytes) const;
};

bool IsFloatingPoint(DataType type);
// True from float64, float32, float16, bfloat16, integers and bool to the first four, and for equal types.
bool CanCast(const Cast& cast);
// Precondition: CanCast(cast). Neither pointer needs to be aligned. The ranges do not overlap.
void CastElements(const Cast& cast, const std::byte* from, std::byte* to, int64_t count);

}  // namespace ckptd
#endif  // CKPTD_CLIENT_FORMATS_CAST_H_
