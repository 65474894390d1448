// What a universal checkpoint is made of: for each parameter and each of its states, where the fragments of
// all ranks are in the files of a DeepSpeed tag. Reads no tensor but `step`.
#ifndef CKPTD_CLIENT_CONVERT_DEEPSPEED_UNIVERSAL_SOURCE_H_
#define CKPTD_CLIENT_CONVERT_DEEPSPEED_UNIVERSAL_SOURCE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/convert/deepspeed/model_copy.h"
#include "client/convert/deepspeed/shards/tp_rules.h"
#include "client/convert/deepspeed/state/ds_moments.h"
#include "client/convert/deepspeed/state/ds_tag.h"
#include "client/convert/files/plan_archive.h"
#include "client/formats/data_type.h"
#include "client/formats/torch/value.h"
#include "storage/fs/file_system.h"

namespace ckptd {

struct UniversalParam {
  struct State {
    DataType dtype = DataType::kFloat32;
    // By tensor-parallel rank, or, of experts, by expert-parallel rank; in data-parallel order.
    std::vector<std::vector<SourceRange>> slices;
  };

  std::string name;
  int pipeline_stage = 0;
  std::map<std::string, State> states;       // "fp32", "exp_avg", ...
  SmallValue step;                           // Stages 1 and 2.
  std::vector<std::vector<int64_t>> shapes;  // As the slices.
  // How the slices of AutoEP's experts are merged. Unset: by the patterns.
  std::optional<TpRule> rule;
};

// A tensor of the model's state dict that the optimizer has no state of: it is not trained.
struct UntrainedTensor {
  std::string name;
  torch::Tensor tensor;
  int input;
};

struct UniversalSource {
  DsTag files;
  int stage = 0;
  int pp = 1, tp = 1, dp = 1;
  std::vector<std::string> inputs;
  std::vector<UniversalParam> params;
  std::vector<UntrainedTensor> untrained;  // Stages 1 and 2.
  TpRules rules;
  DsMoments first;  // Of the first rank; its input is number 0.
  // The model's files, which a universal checkpoint has, too, and what their copies say of AutoEP's experts.
  std::vector<std::string> copied;
  std::map<std::string, ExpertInfo> expert_infos;
};

// `inject_missing_state`: do without universal_checkpoint_info. CANNOT_CONVERT says what is in the way; other
// errors are those of ds_tag.h and ds_state.h.
absl::StatusOr<UniversalSource> ReadUniversalSource(FileSystem& fs, Handle tag, bool inject_missing_state);

}  // namespace ckptd
#endif  // CKPTD_CLIENT_CONVERT_DEEPSPEED_UNIVERSAL_SOURCE_H_
