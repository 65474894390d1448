#include "client/convert/dcp/join_chunks.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/convert/files/convert_error.h"
#include "client/convert/files/value_text.h"
#include "client/formats/torch/value.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

// Elements that are one after the other both in the tensor and in the file.
struct Run {
  int64_t to = 0;    // The first element's index in the tensor.
  int64_t from = 0;  // The first element's byte in the file.
  int64_t elements = 0;
  int input = 0;
};

absl::Status CheckBox(const std::vector<int64_t>& shape, const ChunkSource& chunk) {
  bool fits = chunk.offsets.size() == shape.size() && chunk.sizes.size() == shape.size() &&
              chunk.stride.size() == shape.size();
  for (size_t i = 0; fits && i < shape.size(); ++i) {
    fits = chunk.offsets[i] >= 0 && chunk.sizes[i] >= 0 && chunk.offsets[i] <= shape[i] &&
           chunk.sizes[i] <= shape[i] - chunk.offsets[i];
  }
  if (fits) return absl::OkStatus();
  return CannotConvert(absl::StrCat("its chunk ", ShapeText(chunk.sizes), " at ", ShapeText(chunk.offsets),
                                    " is not within its shape ", ShapeText(shape)));
}

// Cuts a box into runs.
class BoxCutter {
 public:
  BoxCutter(const std::vector<int64_t>& shape, const ChunkSource& chunk, int64_t item_bytes)
      : chunk_(chunk), strides_(torch::ContiguousStride(shape)), item_bytes_(item_bytes) {
    for (size_t i = 0; i < shape.size(); ++i) first_ += chunk.offsets[i] * strides_[i];
    // The inner dimensions that make one run: all but the outermost of them are whole.
    for (outer_ = shape.size(); outer_ > 0; --outer_) {
      const size_t i = outer_ - 1;
      const bool inner_is_whole = i + 1 == shape.size() || chunk.sizes[i + 1] == shape[i + 1];
      const bool in_order = chunk.sizes[i] == 1 || chunk.stride[i] == run_;
      if (!inner_is_whole || !in_order) break;
      run_ *= chunk.sizes[i];
    }
  }

  int64_t runs() const {
    int64_t count = run_ == 0 ? 0 : 1;
    for (size_t i = 0; i < outer_; ++i) count *= chunk_.sizes[i];
    return count;
  }

  void AppendTo(std::vector<Run>& runs) const { Append(0, first_, chunk_.from, runs); }

 private:
  void Append(size_t dimension, int64_t to, int64_t from, std::vector<Run>& runs) const {
    if (dimension == outer_) {
      if (run_ > 0) runs.push_back({.to = to, .from = from, .elements = run_, .input = chunk_.input});
      return;
    }
    for (int64_t i = 0; i < chunk_.sizes[dimension]; ++i) {
      Append(dimension + 1, to + i * strides_[dimension], from + i * chunk_.stride[dimension] * item_bytes_,
             runs);
    }
  }

  const ChunkSource& chunk_;
  const std::vector<int64_t> strides_;  // Of the tensor.
  const int64_t item_bytes_;
  int64_t first_ = 0;  // The index of the box's first element in the tensor.
  size_t outer_ = 0;   // How many dimensions are outside a run.
  int64_t run_ = 1;    // The elements of a run.
};

}  // namespace

absl::StatusOr<std::vector<SourceRange>> JoinChunks(const std::vector<int64_t>& shape, int64_t item_bytes,
                                                    const std::vector<ChunkSource>& chunks) {
  int64_t elements = 1;
  for (const int64_t size : shape) elements *= size;
  std::vector<Run> runs;
  int64_t count = 0;
  for (const ChunkSource& chunk : chunks) {
    CKPTD_RETURN_IF_ERROR(CheckBox(shape, chunk));
    const BoxCutter cutter(shape, chunk, item_bytes);
    count += cutter.runs();
    if (count > static_cast<int64_t>(kMaxChunkRuns)) {
      return CannotConvert(absl::StrCat("its chunks cut it into more than ", kMaxChunkRuns,
                                        " runs of bytes, which ckptd would have to hold in memory"));
    }
    cutter.AppendTo(runs);
  }
  std::sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) { return a.to < b.to; });
  std::vector<SourceRange> ranges;
  int64_t next = 0;
  for (const Run& run : runs) {
    if (run.to < next) return CannotConvert(absl::StrCat("two chunks have its element ", run.to));
    if (run.to > next) break;
    next += run.elements;
    const int64_t bytes = run.elements * item_bytes;
    const bool follows = !ranges.empty() && ranges.back().input == run.input &&
                         ranges.back().from + ranges.back().size == run.from;
    if (follows) {
      ranges.back().size += bytes;
    } else {
      ranges.push_back({.input = run.input, .from = run.from, .size = bytes});
    }
  }
  if (next != elements) return CannotConvert(absl::StrCat("no chunk has its element ", next));
  return ranges;
}

}  // namespace ckptd
