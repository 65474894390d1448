#include "daemon/ledger/state/run_state.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "daemon/etcd/etcd_requests.h"
#include "daemon/ledger/state/checkpoint_damage.h"
#include "daemon/ledger/state/found_messages.h"

namespace ckptd {
namespace {

using etcdserverpb::RequestOp;
using storage::v1::Launch;

bool SameProcesses(const RunState::Living& a, const RunState::Living& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](const auto& x, const auto& y) {
           return x.first == y.first && x.second.process() == y.second.process() &&
                  x.second.job() == y.second.job() && x.second.attempt() == y.second.attempt() &&
                  x.second.rank() == y.second.rank();
         });
}

bool SameDecision(const Launch& a, const Launch& b) {
  return a.resume_decided() == b.resume_decided() && a.resume_tag() == b.resume_tag() &&
         a.resume_sequence() == b.resume_sequence() && a.resume_agreed() == b.resume_agreed() &&
         a.resume_failed() == b.resume_failed();
}

RequestOp PutHead(const LedgerKeys& keys, const Launch& launch) {
  ledger::v1::AttemptHead head;
  head.set_launch_id(launch.launch_id());
  head.set_generation(launch.generation());
  head.set_world_size(launch.world_size());
  head.set_takeover(launch.takeover());
  return Put(keys.Head(launch.attempt()), head.SerializeAsString());
}

RequestOp PutDecision(const LedgerKeys& keys, const Launch& launch) {
  ledger::v1::ResumeDecision decision;
  decision.set_decided(launch.resume_decided());
  decision.set_tag(launch.resume_tag());
  decision.set_sequence(launch.resume_sequence());
  decision.set_agreed(launch.resume_agreed());
  decision.set_failed(launch.resume_failed());
  return Put(keys.Resume(launch.attempt()), decision.SerializeAsString());
}

int64_t ActiveOf(const storage::v1::RunRecord& record) {
  int64_t active = 0;
  for (const Launch& launch : record.launches()) {
    if (launch.active()) active = std::max(active, launch.attempt());
  }
  return active;
}

}  // namespace

RunState::RunState(LedgerKeys keys, std::string node, const CompareAndSwap::Found& found)
    : keys_(std::move(keys)), node_(std::move(node)) {
  for (const auto& range : found) {
    for (const etcdserverpb::KeyValue& pair : range) Read(pair);
    if (!range.empty() && absl::StartsWith(range[0].key(), keys_.Damages())) damaged_ = DamagedOf(range);
  }
}

void RunState::Read(const etcdserverpb::KeyValue& pair) {
  if (pair.key() == keys_.Active()) {
    ledger::v1::ActiveAttempt active;
    active.ParseFromString(pair.value());
    active_ = active.attempt();
    LaunchOf(active_).set_active(true);
  } else if (pair.key() == keys_.AttemptInRoot()) {
    ledger::v1::ActiveAttempt in_root;
    in_root.ParseFromString(pair.value());
    in_root_ = in_root.attempt();
    // Etcd may have lost the launch of this attempt, or some of its ranks.
    LaunchOf(in_root_);
  } else if (pair.key() == keys_.Sequence()) {
    ledger::v1::LastSequence last;
    last.ParseFromString(pair.value());
    record_.set_last_sequence(last.sequence());
  } else if (pair.key() == keys_.Retained()) {
    ledger::v1::Retained retained;
    retained.ParseFromString(pair.value());
    record_.set_retained_through(retained.through());
  } else if (absl::StartsWith(pair.key(), keys_.Living())) {
    ledger::v1::LivingProcesses living;
    living.ParseFromString(pair.value());
    Living& known = pair.key() == keys_.Living(node_) ? living_here_ : living_elsewhere_;
    known.insert(living.by_instance().begin(), living.by_instance().end());
  } else {
    ReadOfAttempt(pair.key(), pair.value());
  }
}

void RunState::ReadOfAttempt(const std::string& key, const std::string& value) {
  const int64_t attempt = keys_.AttemptOf(key);
  if (attempt == 0) return;  // A key of a later version of ckptd.
  Launch& launch = LaunchOf(attempt);
  if (key == keys_.Head(attempt)) {
    ledger::v1::AttemptHead head;
    head.ParseFromString(value);
    launch.set_launch_id(head.launch_id());
    launch.set_generation(head.generation());
    launch.set_world_size(head.world_size());
    launch.set_takeover(head.takeover());
  } else if (key == keys_.Resume(attempt)) {
    ledger::v1::ResumeDecision decision;
    decision.ParseFromString(value);
    launch.set_resume_decided(decision.decided());
    launch.set_resume_tag(decision.tag());
    launch.set_resume_sequence(decision.sequence());
    launch.set_resume_agreed(decision.agreed());
    launch.set_resume_failed(decision.failed());
  } else if (absl::StartsWith(key, keys_.Blocks())) {
    ReadBlock(attempt, key, value);
  } else if (absl::StartsWith(key, keys_.AttemptRanks(attempt))) {
    ledger::v1::NodeRanks ranks;
    ranks.ParseFromString(value);
    ranks_of_nodes_[{attempt, LastPartOf(key)}].assign(ranks.ranks().begin(), ranks.ranks().end());
    if (key == keys_.NodeRanks(attempt, node_)) ranks_here_[attempt] = std::move(ranks);
  }
}

void RunState::ReadBlock(int64_t attempt, const std::string& key, const std::string& value) {
  ledger::v1::BlockRanks block;
  block.ParseFromString(value);
  const std::string node = LastPartOf(key);
  for (const auto& [rank, instance] : block.instances()) {
    (*LaunchOf(attempt).mutable_instances())[rank] = instance;
    node_of_[{attempt, rank}] = node;
  }
  if (node == node_) blocks_here_[key] = std::move(block);
}

void RunState::NameProcesses(const Living& here) {
  std::map<std::pair<int64_t, int>, std::string> living;
  for (const Living* processes : {&here, &std::as_const(living_elsewhere_)}) {
    for (const auto& [instance, process] : *processes) living[{process.attempt(), process.rank()}] = instance;
  }
  for (const auto& [place, ranks] : ranks_of_nodes_) {
    auto& instances = *LaunchOf(place.first).mutable_instances();
    for (const int rank : ranks) {
      const auto found = living.find({place.first, rank});
      const std::string name =
          found != living.end() ? found->second : absl::StrCat("ended on ", place.second, "/", rank);
      instances.insert({rank, name});  // Keeps a process that was read from a block.
    }
  }
}

std::string RunState::NodeOf(int64_t attempt, int rank) const {
  const auto found = node_of_.find({attempt, rank});
  return found == node_of_.end() ? "" : found->second;
}

std::vector<std::string> RunState::NodesOf(int64_t attempt) const {
  std::vector<std::string> nodes;
  for (const auto& [place, ranks] : ranks_of_nodes_) {
    if (place.first == attempt) nodes.push_back(place.second);
  }
  return nodes;
}

// Keys of an attempt may come before its head, and LocalLedger needs the launches sorted by attempt.
Launch& RunState::LaunchOf(int64_t attempt) {
  auto& launches = *record_.mutable_launches();
  int place = 0;
  while (place < launches.size() && launches[place].attempt() < attempt) ++place;
  if (place < launches.size() && launches[place].attempt() == attempt) return launches[place];
  launches.Add()->set_attempt(attempt);
  for (int i = launches.size() - 1; i > place; --i) launches.SwapElements(i, i - 1);
  return launches[place];
}

std::vector<RequestOp> RunState::Changes(const storage::v1::RunRecord& decided) const {
  std::vector<RequestOp> changes;
  const Launch none;
  for (const Launch& launch : decided.launches()) {
    const auto before =
        std::find_if(record_.launches().begin(), record_.launches().end(),
                     [&](const Launch& known) { return known.attempt() == launch.attempt(); });
    const Launch& known = before == record_.launches().end() ? none : *before;
    if (before == record_.launches().end() || known.takeover() != launch.takeover())
      changes.push_back(PutHead(keys_, launch));
    AddChanges(known, launch, &changes);
  }
  if (const int64_t active = ActiveOf(decided); active != active_) {
    ledger::v1::ActiveAttempt message;
    message.set_attempt(active);
    changes.push_back(Put(keys_.Active(), message.SerializeAsString()));
  }
  if (decided.last_sequence() != record_.last_sequence()) {
    ledger::v1::LastSequence message;
    message.set_sequence(decided.last_sequence());
    changes.push_back(Put(keys_.Sequence(), message.SerializeAsString()));
  }
  if (decided.retained_through() != record_.retained_through()) {
    ledger::v1::Retained message;
    message.set_through(decided.retained_through());
    changes.push_back(Put(keys_.Retained(), message.SerializeAsString()));
  }
  return changes;
}

void RunState::AddChanges(const Launch& before, const Launch& after, std::vector<RequestOp>* changes) const {
  const int64_t attempt = after.attempt();
  const auto known = ranks_here_.find(attempt);
  std::set<int> ranks;
  if (known != ranks_here_.end()) ranks.insert(known->second.ranks().begin(), known->second.ranks().end());
  std::map<std::string, ledger::v1::BlockRanks> blocks;
  for (const auto& [rank, instance] : after.instances()) {
    const auto found = before.instances().find(rank);
    if (found != before.instances().end() && found->second == instance) continue;
    const std::string key = keys_.BlockRanks(LedgerKeys::BlockOf(rank), attempt, node_);
    const auto block = blocks_here_.find(key);
    if (block != blocks_here_.end()) blocks.insert(*block);
    (*blocks[key].mutable_instances())[rank] = instance;
    ranks.insert(rank);
  }
  for (const auto& [key, block] : blocks) changes->push_back(Put(key, block.SerializeAsString()));
  if (!blocks.empty()) {
    ledger::v1::NodeRanks of_node;
    of_node.mutable_ranks()->Add(ranks.begin(), ranks.end());
    of_node.set_world_size(after.world_size());
    changes->push_back(Put(keys_.NodeRanks(attempt, node_), of_node.SerializeAsString()));
  }
  if (!SameDecision(before, after)) changes->push_back(PutDecision(keys_, after));
}

std::vector<RequestOp> RunState::LivingChanges(const Living& living, int64_t lease, bool rewrite) const {
  if (!rewrite && SameProcesses(living_here_, living)) return {};
  ledger::v1::LivingProcesses message;
  message.mutable_by_instance()->insert(living.begin(), living.end());
  return {Put(keys_.Living(node_), message.SerializeAsString(), lease)};
}

LocalLedger LedgerFrom(const RunState& state) {
  LocalLedger ledger(state.record(), 0,
                     [](const storage::v1::RunRecord&, absl::AnyInvocable<void(absl::Status)> written) {
                       written(absl::OkStatus());
                     });
  ledger.CloseAttempts(state.in_root());
  return ledger;
}

}  // namespace ckptd
