// The trained weights of a model with experts, at stages 1 and 2. Data-parallel ranks have different experts
// there, so each rank's file says itself which parameters it has a part of.
#ifndef CKPTD_CLIENT_CONVERT_DEEPSPEED_EXPERT_WEIGHTS_H_
#define CKPTD_CLIENT_CONVERT_DEEPSPEED_EXPERT_WEIGHTS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/convert/deepspeed/ds_weights.h"
#include "client/convert/deepspeed/state/ds_state.h"
#include "client/convert/deepspeed/state/ds_tag.h"
#include "storage/fs/file_system.h"

namespace ckptd {

struct ExpertWeights {
  int stage = 0;
  std::vector<Weight> weights;  // Experts of deepspeed.moe by their numbers among all.
};

// Appends the files that the ranges refer to to `inputs`. Experts that are not trained are of Kind::kFrozen,
// and come from their own files. CANNOT_CONVERT says what does not fit together.
absl::StatusOr<ExpertWeights> GatherExpertWeights(FileSystem& fs, Handle tag, const DsTag& files,
                                                  const DsModelState& model,
                                                  std::vector<std::string>& inputs);

}  // namespace ckptd
#endif  // CKPTD_CLIENT_CONVERT_DEEPSPEED_EXPERT_WEIGHTS_H_
