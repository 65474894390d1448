// The weights of a DeepSpeed ZeRO checkpoint, gathered over its data-parallel ranks: for each tensor of the
// model's state dict, where its bytes are in the tag's files. Reads no tensor.
//
// Trained parameters are the optimizer's fp32 weights; buffers and frozen parameters are as the model has
// them. The order is that of DeepSpeed's zero_to_fp32.py: buffers, frozen, trained, shared.
#ifndef CKPTD_CLIENT_CONVERT_DEEPSPEED_DS_WEIGHTS_H_
#define CKPTD_CLIENT_CONVERT_DEEPSPEED_DS_WEIGHTS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/convert/files/weight_files.h"
#include "storage/fs/file_system.h"

namespace ckptd {

struct DsWeights {
  int stage = 0;
  int ranks = 0;                    // Data-parallel.
  std::vector<std::string> inputs;  // The files that the ranges refer to, relative to the tag.
  std::vector<Weight> weights;      // Names are unique.
};

// Stages 1 to 3, without tensor and pipeline parallelism, and, at stage 3, without expert parallelism:
// CANNOT_CONVERT says what is in the way.
// Other errors are those of ds_tag.h and ds_state.h.
absl::StatusOr<DsWeights> GatherDsWeights(FileSystem& fs, Handle tag, bool exclude_frozen);

}  // namespace ckptd
#endif  // CKPTD_CLIENT_CONVERT_DEEPSPEED_DS_WEIGHTS_H_
