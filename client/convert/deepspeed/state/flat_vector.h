// Flat tensors in files, as ZeRO has them, and where ranges of their elements are.
#ifndef CKPTD_CLIENT_CONVERT_DEEPSPEED_STATE_FLAT_VECTOR_H_
#define CKPTD_CLIENT_CONVERT_DEEPSPEED_STATE_FLAT_VECTOR_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/convert/files/plan_archive.h"
#include "client/formats/data_type.h"
#include "client/formats/torch/value.h"

namespace ckptd {

// A contiguous tensor of one dimension in an input file.
struct FlatTensor {
  int input = 0;
  int64_t from = 0;  // Of its first byte in the file.
  int64_t elements = 0;
  DataType dtype = DataType::kFloat32;
};

// Flat tensors, one after the other.
class FlatVector {
 public:
  // FAILED_PRECONDITION, reason CANNOT_CONVERT, if the tensor has another dtype than those before.
  absl::Status Append(const FlatTensor& part);
  int64_t elements() const { return ends_.empty() ? 0 : ends_.back(); }
  DataType dtype() const { return parts_.empty() ? DataType::kFloat32 : parts_.front().dtype; }
  // Appends where `count` elements from `offset` on are. Precondition: offset + count <= elements().
  void AppendSlice(int64_t offset, int64_t count, std::vector<SourceRange>& ranges) const;

 private:
  std::vector<FlatTensor> parts_;
  std::vector<int64_t> ends_;  // Of each part, in elements from the begin of the first.
};

// Where the elements of a tensor are in an input file, in order. Also for a tensor that is not contiguous.
// CANNOT_CONVERT if it is scattered over too many places.
absl::StatusOr<std::vector<SourceRange>> RangesOf(const torch::Tensor& tensor, int input);

}  // namespace ckptd
#endif  // CKPTD_CLIENT_CONVERT_DEEPSPEED_STATE_FLAT_VECTOR_H_
