#include "daemon/ledger/run/join_round.h"

#include <algorithm>
#include <utility>

#include "daemon/etcd/etcd_requests.h"
#include "daemon/ledger/run/split_launch.h"
#include "storage/ledger/local_ledger.h"

namespace ckptd {
namespace {

using etcdserverpb::RequestOp;
using storage::v1::Launch;

// A transaction of etcd has 128 operations at most. A block of a launch takes one to read it and one to write
// it; each holder takes one to read its live processes.
constexpr size_t kMostBlocks = 48;
constexpr size_t kMostHolders = 48;

// Makes these processes live ones for the ledger: each joins its own attempt again, which changes nothing
// else.
void JoinAgain(const RunState::Living& living, const storage::v1::RunRecord& record, LocalLedger* ledger) {
  for (const Launch& launch : record.launches()) {
    for (const auto& [rank, instance] : launch.instances()) {
      const auto found = living.find(instance);
      if (found == living.end()) continue;
      Ledger::JoinSpec spec;
      spec.rank = rank;
      spec.world_size = launch.world_size();
      spec.launch_id = launch.launch_id();
      spec.instance = instance;
      spec.process = found->second.process();
      spec.job = found->second.job();
      ledger->Join(spec, [](const absl::StatusOr<int64_t>&) {});
    }
  }
}

const Launch* NewestGeneration(const storage::v1::RunRecord& record, const std::string& launch_id) {
  const Launch* newest = nullptr;
  for (const Launch& launch : record.launches()) {
    if (launch.launch_id() == launch_id) newest = &launch;
  }
  return newest;
}

}  // namespace

ledger::v1::LivingProcesses::Process ProcessOf(const Ledger::JoinSpec& spec, int64_t attempt) {
  ledger::v1::LivingProcesses::Process process;
  process.set_process(spec.process);
  process.set_job(spec.job);
  process.set_attempt(attempt);
  process.set_rank(spec.rank);
  return process;
}

JoinRound::JoinRound(LedgerKeys keys, NodeIdentity node, RunState::Living living, std::vector<Join>* joins)
    : keys_(std::move(keys)), node_(std::move(node)), living_(std::move(living)) {
  std::set<std::pair<std::string, int>> places;
  auto next = joins->begin();
  for (; next != joins->end(); ++next) {
    const int block = LedgerKeys::BlockOf(next->spec.rank);
    places.insert({next->spec.launch_id, block});
    if (places.size() > kMostBlocks) break;
    blocks_.insert(block);
    joins_.push_back(std::move(*next));
  }
  joins->erase(joins->begin(), next);
}

std::vector<CompareAndSwap::Range> JoinRound::Ranges() const {
  if (joins_.empty()) return {{keys_.Living(node_.name)}};
  std::vector<CompareAndSwap::Range> ranges = {
      {keys_.Heads(), true}, {keys_.Active()}, {keys_.AttemptInRoot()}};
  for (const int block : blocks_) ranges.push_back({keys_.Block(block), true});
  if (std::any_of(joins_.begin(), joins_.end(), [](const Join& join) { return join.spec.takeover; }))
    ranges.push_back({keys_.Retained()});
  if (needs_.others) {
    ranges.push_back({keys_.AttemptsFrom(needs_.acting), false, PrefixEnd(keys_.Attempts())});
  } else {
    for (const int64_t attempt : needs_.attempts) ranges.push_back({keys_.NodeRanks(attempt, node_.name)});
  }
  if (needs_.others || needs_.holders.size() > kMostHolders) {
    ranges.push_back({keys_.Living(), true});
    return ranges;
  }
  ranges.push_back({keys_.Living(node_.name)});
  for (const std::string& node : needs_.holders) ranges.push_back({keys_.Living(node)});
  return ranges;
}

JoinRound::Needs JoinRound::NeedsOf(const RunState& state) const {
  Needs needs;
  for (const Join& join : joins_) {
    const Launch* const launch = NewestGeneration(state.record(), join.spec.launch_id);
    if (launch == nullptr) {
      needs.others = true;
      continue;
    }
    needs.attempts.insert(launch->attempt());
    const auto holder = launch->instances().find(join.spec.rank);
    if (holder == launch->instances().end() || holder->second == join.spec.instance) continue;
    const std::string node = state.NodeOf(launch->attempt(), join.spec.rank);
    if (node != node_.name) needs.holders.insert(node);
  }
  if (!needs.others) return needs;
  // With `others`, Ranges reads the ranks of all attempts from `acting` on, and no attempt by itself. So it
  // begins at the earliest attempt that a process joins, if that is before the active one.
  needs.acting = state.active();
  for (const int64_t attempt : needs.attempts) needs.acting = std::min(needs.acting, attempt);
  return needs;
}

bool JoinRound::OtherBegins() const {
  const auto is_first = [](const Join& join) { return join.spec.rank == 0 || join.spec.takeover; };
  return needs_.others && std::none_of(joins_.begin(), joins_.end(), is_first);
}

std::vector<RequestOp> JoinRound::Decide(const CompareAndSwap::Found& found) {
  RunState state(keys_, node_.name, found);
  const Needs needs = joins_.empty() ? needs_ : NeedsOf(state);
  incomplete_ = needs != needs_;
  needs_ = needs;
  if (incomplete_) return {};
  state.NameProcesses(living_);
  LocalLedger ledger = LedgerFrom(state);
  JoinAgain(state.living_elsewhere(), state.record(), &ledger);
  JoinAgain(living_, state.record(), &ledger);
  RunState::Living living_after = living_;
  results_.clear();
  for (const Join& join : joins_) {
    const bool is_first = NewestGeneration(ledger.record(), join.spec.launch_id) == nullptr;
    const absl::Status whole = is_first ? CheckLaunchIsWhole(state, node_.name, join.spec) : absl::OkStatus();
    if (!whole.ok()) {
      results_.push_back(whole);
      continue;
    }
    ledger.Join(join.spec, [this](absl::StatusOr<int64_t> result) { results_.push_back(std::move(result)); });
    if (results_.back().ok()) living_after[join.spec.instance] = ProcessOf(join.spec, *results_.back());
  }
  std::vector<RequestOp> operations = state.Changes(ledger.record());
  for (RequestOp& operation : state.LivingChanges(living_after, node_.lease, rewrite_living_))
    operations.push_back(std::move(operation));
  return operations;
}

}  // namespace ckptd
