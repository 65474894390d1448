#include "client/convert/deepspeed/shards/expert_shards.h"

#include "absl/strings/str_cat.h"
#include "client/convert/files/convert_error.h"
#include "client/convert/files/value_text.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd {

using torch::Dict;

absl::Status ExpertShards::ReadRanks(const Dict& root, int data_parallel) {
  for (const auto& [name, param] : layers_.params()) {
    if (static_cast<size_t>(data_parallel) % param.ranks() != 0)
      return CannotConvert(absl::StrCat(name, " is of ", param.ranks(),
                                        " expert-parallel ranks, which do not divide ", data_parallel,
                                        " data-parallel ones"));
  }
  constexpr char kKey[] = "use_data_before_expert_parallelism";
  ranks_.data_parallel = data_parallel;
  CKPTD_ASSIGN_OR_RETURN(const Dict* config, ds::OptionalDict(root.Find("ds_config"), "ds_config"));
  const torch::ValueRef value = config != nullptr ? config->Find(kKey) : nullptr;
  if (value == nullptr) return absl::OkStatus();
  CKPTD_ASSIGN_OR_RETURN(const auto* before, ds::As<bool>(value, kKey, "a bool"));
  ranks_.data_before_expert = *before;
  return absl::OkStatus();
}

absl::Status ExpertShards::AddShape(const ExpertParam& expert, const NamedShape& named, size_t rank) {
  absl::StatusOr<TpRule> rule = expert.RuleFor(named.shape, rank);
  if (!rule.ok()) return Annotate(rule.status(), named.name);
  const TpRule& known = rules_.try_emplace(named.name, *rule).first->second;
  if (known.map->shape == rule->map->shape) return absl::OkStatus();
  return CannotConvert(absl::StrCat("the experts of ", named.name, " are ", ShapeText(known.map->shape),
                                    " by one file and ", ShapeText(rule->map->shape), " by another"));
}

absl::Status ExpertShards::AddPartition(const std::string& name, size_t rank, const Partition& partition) {
  const int64_t next = partitions_[{name, rank}]++;
  if (next == partition.rank) return absl::OkStatus();
  return CannotConvert(absl::StrCat("partition ", partition.rank, " of ", partition.count, " of ", name,
                                    " on expert-parallel rank ", rank, " comes where ", next,
                                    " is expected"));
}

const TpRule* ExpertShards::RuleOf(const std::string& name) const {
  const auto found = rules_.find(name);
  return found != rules_.end() ? &found->second : nullptr;
}

}  // namespace ckptd
