#include "client/convert/deepspeed/state/flat_vector.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/convert/files/convert_error.h"

namespace ckptd {
namespace {

constexpr size_t kMaxRanges = 1 << 20;  // Of one tensor that is not contiguous.

}  // namespace

absl::Status FlatVector::Append(const FlatTensor& part) {
  if (!parts_.empty() && part.dtype != dtype()) {
    return CannotConvert(absl::StrCat("parts of one flat tensor are ",
                                      std::string(InfoOf(dtype()).torch_name), " and ",
                                      std::string(InfoOf(part.dtype).torch_name)));
  }
  ends_.push_back(elements() + part.elements);
  parts_.push_back(part);
  return absl::OkStatus();
}

void FlatVector::AppendSlice(int64_t offset, int64_t count, std::vector<SourceRange>& ranges) const {
  auto index = static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), offset) - ends_.begin());
  const int64_t item = InfoOf(dtype()).item_bytes;
  for (; count > 0; ++index) {
    const FlatTensor& part = parts_[index];
    const int64_t within = offset - (ends_[index] - part.elements);
    const int64_t now = std::min(count, part.elements - within);
    if (now > 0) ranges.push_back({part.input, part.from + within * item, now * item});
    offset += now;
    count -= now;
  }
}

absl::StatusOr<std::vector<SourceRange>> RangesOf(const torch::Tensor& tensor, int input) {
  const int64_t item = InfoOf(tensor.dtype).item_bytes;
  if (tensor.elements() == 0) return std::vector<SourceRange>();
  // The dimensions from `inner` on are without gaps: `run` elements.
  size_t inner = tensor.shape.size();
  int64_t run = 1, runs = 1;
  while (inner > 0 && (tensor.stride[inner - 1] == run || tensor.shape[inner - 1] == 1))
    run *= tensor.shape[--inner];
  for (size_t i = 0; i < inner; ++i) runs *= tensor.shape[i];
  if (runs > static_cast<int64_t>(kMaxRanges)) {
    return CannotConvert(
        absl::StrCat("a tensor lies in ", runs, " places of its storage; save it with .contiguous()"));
  }
  std::vector<SourceRange> ranges;
  std::vector<int64_t> at(inner, 0);
  for (int64_t i = 0; i < runs; ++i) {
    int64_t element = 0;
    for (size_t d = 0; d < inner; ++d) element += at[d] * tensor.stride[d];
    ranges.push_back({input, tensor.file_offset() + element * item, run * item});
    for (size_t d = inner; d-- > 0 && ++at[d] == tensor.shape[d];) at[d] = 0;
  }
  return ranges;
}

}  // namespace ckptd
