// Merges the slices of a parameter, as ranges of files. See tp_rules.h for the rules.
#ifndef CKPTD_CLIENT_CONVERT_DEEPSPEED_SHARDS_TP_MERGE_H_
#define CKPTD_CLIENT_CONVERT_DEEPSPEED_SHARDS_TP_MERGE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/convert/deepspeed/shards/tp_rules.h"
#include "client/convert/deepspeed/state/slice_ranges.h"
#include "client/convert/files/plan_archive.h"
#include "client/formats/data_type.h"
#include "client/formats/torch/value.h"

namespace ckptd {

struct MergedTensor {
  std::vector<int64_t> shape;
  std::vector<SourceRange> ranges;  // Those of Piece::kLiteral are in `literals`.
  std::string literals;             // Averages.
  torch::Dict notes;                // What a universal checkpoint says beside the tensor: cat_dim, ...
};

// Slices are those of all tensor-parallel ranks, in order, or, of experts, of all expert-parallel ranks.
// Reads only what is to be compared (replicated parameters) or averaged. CANNOT_CONVERT says what does not
// fit together.
absl::StatusOr<MergedTensor> MergeTpSlices(const TpRule& rule, const std::vector<TpSlice>& slices,
                                           DataType dtype, const ReadRange& read);

}  // namespace ckptd
#endif  // CKPTD_CLIENT_CONVERT_DEEPSPEED_SHARDS_TP_MERGE_H_
