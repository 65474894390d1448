// A slice of a tensor, of which a rank has the elements as ranges of files: cutting parts out of it, and
// reading and comparing them.
#ifndef CKPTD_CLIENT_CONVERT_DEEPSPEED_STATE_SLICE_RANGES_H_
#define CKPTD_CLIENT_CONVERT_DEEPSPEED_STATE_SLICE_RANGES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/convert/files/plan_archive.h"

namespace ckptd {

// What one rank has of a parameter, or of one of its states.
struct TpSlice {
  std::vector<int64_t> shape;
  std::vector<SourceRange> ranges;  // All of its elements, in order.
};

// A merged tensor of more ranges is refused: they are in memory.
inline constexpr size_t kMaxMergedRanges = 2 << 20;

// Fills `into` with the range's bytes.
using ReadRange = std::function<absl::Status(const SourceRange& range, std::span<std::byte> into)>;

// Cuts parts out of the ranges of a slice. It is quick if parts are asked for in ascending order.
class SliceCutter {
 public:
  // `ranges` must outlive this.
  explicit SliceCutter(const std::vector<SourceRange>& ranges) : ranges_(ranges) {}

  // Appends where `size` bytes from `offset` on are. Precondition: the slice has them.
  void Append(int64_t offset, int64_t size, std::vector<SourceRange>& to);

 private:
  const std::vector<SourceRange>& ranges_;
  size_t index_ = 0;
  int64_t begin_ = 0;  // Of the range `index_` in the slice, in bytes.
};

// Reads `size` bytes of a slice from `offset` on. Fails as `read` does.
absl::Status ReadSlice(const std::vector<SourceRange>& ranges, int64_t offset, int64_t size,
                       const ReadRange& read, std::vector<std::byte>& into);

// A run of bytes of a slice.
struct SlicePart {
  const std::vector<SourceRange>& ranges;
  int64_t offset = 0;
};

// Whether two slices have the same `size` bytes there. Fails as `read` does.
absl::StatusOr<bool> SameBytes(const SlicePart& one, const SlicePart& other, int64_t size,
                               const ReadRange& read);

}  // namespace ckptd
#endif  // CKPTD_CLIENT_CONVERT_DEEPSPEED_STATE_SLICE_RANGES_H_
