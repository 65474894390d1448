// How the ranks of a checkpoint share AutoEP's tensors of experts, gathered file by file: which
// expert-parallel rank has which part, and how the parts become whole tensors.
#ifndef CKPTD_CLIENT_CONVERT_DEEPSPEED_SHARDS_EXPERT_SHARDS_H_
#define CKPTD_CLIENT_CONVERT_DEEPSPEED_SHARDS_EXPERT_SHARDS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/status/status.h"
#include "client/convert/deepspeed/shards/expert_layers.h"
#include "client/convert/deepspeed/shards/tp_rules.h"
#include "client/convert/deepspeed/state/ds_moments.h"
#include "client/convert/deepspeed/state/ds_value.h"
#include "client/formats/torch/value.h"

namespace ckptd {

// Errors are CANNOT_CONVERT and name the tensor.
class ExpertShards {
 public:
  bool empty() const { return layers_.empty(); }
  const ExpertLayers& layers() const { return layers_; }
  // Null: not a tensor of experts.
  const ExpertParam* Find(const std::string& name) const { return layers_.Find(name); }

  // Adds what a file says of the layers.
  absl::Status AddLayers(const ExpertLayers& layers) { return layers_.Merge(layers); }
  // Stages 1 and 2: reads from the root of a model's state how data-parallel ranks are expert-parallel ones.
  absl::Status ReadRanks(const torch::Dict& root, int data_parallel);
  const ExpertRanks& ranks() const { return ranks_; }
  // Precondition: ReadRanks() has returned OK.
  size_t RankOf(const ExpertParam& expert, int data_parallel) const {
    return ranks_.Of(data_parallel, expert.ranks());
  }
  // An expert-parallel rank has a tensor of this shape.
  absl::Status AddShape(const ExpertParam& expert, const NamedShape& named, size_t rank);
  // Stage 3: the next data-parallel rank of an expert-parallel one has this partition of a tensor. They must
  // come in order.
  absl::Status AddPartition(const std::string& name, size_t rank, const Partition& partition);
  // How a tensor's parts become one. Null: no rank has it.
  const TpRule* RuleOf(const std::string& name) const;

 private:
  ExpertLayers layers_;  // By all files.
  ExpertRanks ranks_;
  std::unordered_map<std::string, TpRule> rules_;
  std::map<std::pair<std::string, size_t>, int64_t> partitions_;  // Seen so far of an expert-parallel rank.
};

}  // namespace ckptd
#endif  // CKPTD_CLIENT_CONVERT_DEEPSPEED_SHARDS_EXPERT_SHARDS_H_
