#include "daemon/ledger/run/split_launch.h"

#include <algorithm>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/ledger/keys/ledger_reasons.h"
#include "storage/base/errors.h"

namespace ckptd {
namespace {

using storage::v1::Launch;

absl::Status IdsDiffer(const Ledger::JoinSpec& spec, const std::string& node, const Launch& other,
                       const std::vector<int>& ranks, const std::set<std::string>& nodes) {
  return MakeError(
      absl::StatusCode::kFailedPrecondition, ledger_reason::kLaunchIdsDiffer,
      absl::StrCat(
          "rank ", spec.rank, " on node \"", node, "\" has the launch id \"", spec.launch_id,
          "\", and ranks ", JoinRanks(ranks), " on node \"", absl::StrJoin(nodes, "\", \""),
          "\", of as many, have \"", other.launch_id(),
          "\"; set CKPTD_LAUNCH_ID to one text on all nodes, or give the launcher an id that all nodes "
          "share (torchrun --rdzv-id). If that is an earlier launch, end its processes, or take it over"),
      {{"ranks", absl::StrCat(spec.rank)}});
}

}  // namespace

absl::Status CheckLaunchIsWhole(const RunState& state, const std::string& node,
                                const Ledger::JoinSpec& spec) {
  if (spec.takeover) return absl::OkStatus();
  const auto lives = [&state](const auto& of_rank) {
    return state.living_elsewhere().contains(of_rank.second);
  };
  for (const Launch& other : state.record().launches()) {
    const auto& processes = other.instances();
    const bool same_size = other.world_size() == spec.world_size;
    if (other.attempt() < state.active() || !same_size || processes.contains(spec.rank)) continue;
    // A launch is over when one of its processes has ended. `lives` is false for processes of this node.
    if (processes.empty() || !std::all_of(processes.begin(), processes.end(), lives)) continue;
    std::vector<int> ranks;
    std::set<std::string> nodes;
    for (const auto& [rank, instance] : processes) ranks.push_back(rank);
    std::sort(ranks.begin(), ranks.end());
    for (const std::string& other_node : state.NodesOf(other.attempt())) nodes.insert(other_node);
    return IdsDiffer(spec, node, other, ranks, nodes);
  }
  return absl::OkStatus();
}

}  // namespace ckptd
