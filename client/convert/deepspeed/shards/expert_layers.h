// DeepSpeed's AutoEP: layers whose experts lie in three tensors w1, w2 and w3, and are spread over
// expert-parallel ranks. Each of those has a tensor of its own experts, one after the other. The model's
// state has a description of the layers, ds_autoep_layers.
#ifndef CKPTD_CLIENT_CONVERT_DEEPSPEED_SHARDS_EXPERT_LAYERS_H_
#define CKPTD_CLIENT_CONVERT_DEEPSPEED_SHARDS_EXPERT_LAYERS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/convert/deepspeed/shards/tp_rules.h"
#include "client/formats/torch/value.h"

namespace ckptd {

// One tensor of experts.
struct ExpertParam {
  std::vector<std::vector<int64_t>>
      of_rank;                      // The experts of each expert-parallel rank, in their order there.
  int64_t experts = 0;              // All of them, each on a rank at least.
  torch::ValueRef stored_map;       // What the training program says itself of the places; null: nothing.
  std::optional<int64_t> own_rank;  // The expert-parallel rank of the process that wrote this.

  size_t ranks() const { return of_rank.size(); }
  bool SamePlaces(const ExpertParam& other) const {
    return of_rank == other.of_rank && experts == other.experts;
  }
  // How the ranks' tensors become one, if `rank` has a tensor of this shape. CANNOT_CONVERT if it cannot.
  absl::StatusOr<TpRule> RuleFor(const std::vector<int64_t>& shape, size_t rank) const;
};

// How a data-parallel rank and its expert-parallel rank belong together.
struct ExpertRanks {
  int data_parallel = 1;
  bool data_before_expert = false;  // DeepSpeed's use_data_before_expert_parallelism.

  // Of a data-parallel rank, with `ranks` expert-parallel ones. Precondition: `ranks` divides data_parallel.
  size_t Of(int rank, size_t ranks) const;
};

class ExpertLayers {
 public:
  // Reads what the root of a model's state says; no layers if it says nothing. `stage3`: the experts must be
  // in ZeRO's partitions, as DeepSpeed has them at stage 3.
  static absl::StatusOr<ExpertLayers> Parse(const torch::Dict& root, bool stage3);

  bool empty() const { return params_.empty(); }
  const std::map<std::string, ExpertParam>& params() const { return params_; }
  const ExpertParam* Find(const std::string& name) const;  // Null: not a tensor of experts.
  // The description, a list of dicts as it was read.
  const torch::ValueRef& description() const { return description_; }
  // Adds the layers of another file. CANNOT_CONVERT if the two contradict each other.
  absl::Status Merge(const ExpertLayers& other);
  // The list that ds_to_universal.py leaves in the model's state at stages 1 and 2: without the places.
  torch::ValueRef ShortDescription() const;

 private:
  absl::Status Add(const torch::ValueRef& layer, bool stage3);

  std::map<std::string, ExpertParam> params_;
  torch::ValueRef description_;
};

}  // namespace ckptd
#endif  // CKPTD_CLIENT_CONVERT_DEEPSPEED_SHARDS_EXPERT_LAYERS_H_
