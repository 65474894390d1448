#include "daemon/cluster/node/voters.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/ledger/save/last_vote.h"

namespace ckptd {
namespace {

std::vector<etcdserverpb::KeyValue> ValuesOf(const EtcdMirror& mirror) {
  std::vector<etcdserverpb::KeyValue> values;
  for (const auto& [name, key] : mirror.keys()) values.push_back(key);
  return values;
}

}  // namespace

Voters::Voters(Etcd* etcd, LedgerKeys keys, const std::string& nodes, std::string run,
               std::function<void(const absl::Status&)> ended)
    : etcd_(etcd),
      keys_(std::move(keys)),
      run_(std::move(run)),
      ended_(std::move(ended)),
      nodes_(
          etcd, nodes, "following the nodes",
          [this](const std::vector<std::string>&) { nodes_known_ = true; }, ended_) {}

void Voters::Follow(int64_t attempt) {
  if (attempt == attempt_ || attempt == 0) return;
  attempt_ = attempt;
  ranks_known_ = false;
  ranks_ = std::make_unique<EtcdMirror>(
      etcd_, keys_.AttemptRanks(attempt), absl::StrCat("following an attempt of run ", run_),
      [this](const std::vector<std::string>&) { ranks_known_ = true; }, ended_);
  ranks_->Start();
}

std::optional<SaveGuess::Voters> Voters::Of(int64_t attempt) const {
  if (attempt != attempt_ || !nodes_known_ || !ranks_known_ || ranks_->keys().size() > kMostVoters)
    return std::nullopt;
  return SaveGuess::Voters{ValuesOf(*ranks_), ValuesOf(nodes_)};
}

}  // namespace ckptd
