#include "daemon/cluster/root_trial.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ckptd/ledger/v1/ledger.pb.h"
#include "daemon/ledger/keys/keys.h"
#include "storage/base/errors.h"
#include "storage/base/finding.h"

namespace ckptd {
namespace {

// The nodes ask for the last rank of a launch that often, and meet when all of them have seen it.
constexpr Duration kFirstPause = std::chrono::milliseconds(500), kLongestPause = std::chrono::seconds(5);
// The next launch tries what this one could not.
constexpr Duration kLongestLook = std::chrono::minutes(10);

std::string TextOf(const std::vector<Finding>& findings) {
  return absl::StrJoin(findings, "; ", [](std::string* text, const Finding& each) {
    absl::StrAppend(text, each.subject, ": ", each.what, each.advice.empty() ? "" : " -> ", each.advice);
  });
}

}  // namespace

RootTrial::RootTrial(Etcd* etcd, Clock* clock, SharedFilesIo* files, Options options, Hooks hooks)
    : etcd_(etcd),
      clock_(clock),
      files_(files),
      options_(std::move(options)),
      hooks_(std::move(hooks)),
      look_again_(kFirstPause, kLongestPause) {}

void RootTrial::Joined(int64_t attempt, int world_size, const std::string& node) {
  if (attempt <= attempt_) return;
  attempt_ = attempt;
  world_size_ = world_size;
  node_ = node;
  stop_->store(true);
  is_looking_ = world_size > 1;
  look_until_ = clock_->Now() + kLongestLook;
  look_again_.Succeeded();
  if (!std::exchange(unsuitable_, absl::OkStatus()).ok()) hooks_.changed();
}

void RootTrial::OnTick() {
  if (!is_looking_ || asked_ || !look_again_.IsOver(clock_->Now())) return;
  if (clock_->Now() >= look_until_) {
    is_looking_ = false;
    return;
  }
  look_again_.Failed(clock_->Now());
  Look();
}

void RootTrial::Look() {
  asked_ = true;
  ListPrefix(etcd_, LedgerKeys(options_.prefix).AttemptRanks(attempt_),
             absl::StrCat("looking for the nodes of a launch in ", options_.run),
             callbacks_.Guard([this, attempt = attempt_](const absl::StatusOr<EtcdListing>& ranks) {
               asked_ = false;
               if (attempt == attempt_) OnRanks(attempt, ranks);
             }));
}

void RootTrial::OnRanks(int64_t attempt, const absl::StatusOr<EtcdListing>& ranks) {
  if (!ranks.ok()) return;
  const size_t prefix = LedgerKeys(options_.prefix).AttemptRanks(attempt).size();
  std::set<int> joined;
  std::vector<std::string> nodes;  // Sorted, as the keys are.
  for (const etcdserverpb::KeyValue& key : ranks->keys) {
    ledger::v1::NodeRanks of_node;
    if (!of_node.ParseFromString(key.value())) return;
    joined.insert(of_node.ranks().begin(), of_node.ranks().end());
    nodes.push_back(key.key().substr(prefix));
  }
  if (static_cast<int>(joined.size()) < world_size_) return;
  is_looking_ = false;
  nodes.resize(std::min(nodes.size(), kMostTryingNodes));
  if (nodes.size() < 2 || std::find(nodes.begin(), nodes.end(), node_) == nodes.end()) return;
  Try(std::move(nodes));
}

void RootTrial::Try(std::vector<std::string> nodes) {
  stop_ = std::make_shared<std::atomic<bool>>(false);
  NodesToTry trying;
  trying.self = node_;
  trying.nodes = nodes;
  trying.attempt = attempt_;
  trying.visibility = options_.visibility;
  trying.stopped = [stop = stop_] { return stop->load(); };
  files_->TryNodes(std::move(trying), callbacks_.Guard([this, attempt = attempt_, nodes = std::move(nodes)](
                                                           const absl::StatusOr<NodesTried>& tried) {
    if (attempt == attempt_) OnTried(nodes, tried);
  }));
}

void RootTrial::OnTried(const std::vector<std::string>& nodes, const absl::StatusOr<NodesTried>& tried) {
  const std::string who = absl::StrJoin(nodes, ", ");
  const std::string by_hand =
      absl::StrCat("ckptctl doctor ", options_.run, " --nodes=", nodes.size(), ", run on them at once");
  if (absl::IsCancelled(tried.status())) return;
  if (!tried.ok()) {
    return hooks_.noticed(absl::StrCat(
        "the nodes ", who, " could not try together whether the file system gives what several nodes need: ",
        std::string(tried.status().message()),
        ". If their daemons run, these nodes do not share the folder, or see its files too late; ", by_hand,
        ", shows it. The next launch tries it again"));
  }
  if (tried->before) return;
  if (!tried->doubtful.empty())
    hooks_.noticed(absl::StrCat("the nodes ", who, " have found: ", TextOf(tried->doubtful)));
  if (tried->unsuitable.empty()) {
    return hooks_.succeeded(absl::StrCat("the nodes ", who, " have tried the file system of ", options_.run,
                                         ": it gives what several nodes need"));
  }
  unsuitable_ = MakeError(
      absl::StatusCode::kFailedPrecondition, "ROOT_UNSUITABLE",
      absl::StrCat(
          "the file system of ", options_.run, " does not give what several nodes need, as the nodes ", who,
          " have found at this launch: ", TextOf(tried->unsuitable),
          ". Launches save here when that is mended: each of them tries it again. ", by_hand, ", shows more"),
      {{"path", options_.run}});
  hooks_.changed();
}

}  // namespace ckptd
