// The layout of a DeepSpeed checkpoint on disk: the names within a tag's directory.
//
//   [bf16_]zero_pp_rank_0_mp_rank_00_optim_states.pt   ZeRO's state of a data-parallel rank, stages 1 to 3
//   mp_rank_00_model_states.pt                         the model's state, stages 0 to 2
//   zero_pp_rank_0_mp_rank_00_model_states.pt          the model's state of a data-parallel rank, stage 3
//   layer_03-model_00-model_states.pt                  the weights of a layer of a pipeline module
//   layer_0_expert_1_mp_rank_00_model_states.pt        the weights of an expert
//   expp_rank_0_mp_rank_00_optim_states.pt             the optimizer's state of an expert-parallel rank
//
// In the names, pp_rank is the data-parallel rank, and mp_rank enumerates the tensor-parallel ranks of the
// first pipeline stage, then those of the second, and so on.
#ifndef CKPTD_CLIENT_CONVERT_DEEPSPEED_STATE_DS_TAG_H_
#define CKPTD_CLIENT_CONVERT_DEEPSPEED_STATE_DS_TAG_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/fs/file_system.h"

namespace ckptd {

// Names, by model-parallel and then data-parallel rank. No name is missing.
using RankGrid = std::vector<std::vector<std::string>>;

struct DsTag {
  RankGrid optim;
  RankGrid stage3_model;           // Empty below stage 3.
  std::vector<std::string> model;  // By model-parallel rank. Empty at stage 3.
  std::vector<std::string> layers, experts;
  size_t data_parallel() const { return optim.front().size(); }
};

// Looks only at names. Fails with
//   NOT_FOUND, NO_OPTIMIZER_STATE                 there is no file of a ZeRO optimizer
//   FAILED_PRECONDITION, INCOMPLETE_CHECKPOINT    files of some ranks are missing, and the message names them
//   FAILED_PRECONDITION, CANNOT_CONVERT           files of two saves are mixed
absl::StatusOr<DsTag> ScanDsTag(FileSystem& fs, Handle tag);

}  // namespace ckptd
#endif  // CKPTD_CLIENT_CONVERT_DEEPSPEED_STATE_DS_TAG_H_
