#include "daemon/cluster/coordinator/save_watch.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "daemon/ledger/state/found_messages.h"

namespace ckptd {
namespace {

using etcdserverpb::KeyValue;
using ledger::v1::NodeVote;
using ledger::v1::SaveState;

std::vector<KeyValue> ValuesOf(const EtcdMirror::Keys& keys) {
  std::vector<KeyValue> values;
  for (const auto& [name, key] : keys) values.push_back(key);
  return values;
}

}  // namespace

SaveWatch::SaveWatch(Etcd* etcd, const std::string& prefix, const NodeIdentity& node, std::string run,
                     Hooks hooks)
    : etcd_(etcd),
      keys_(prefix),
      nodes_prefix_(node.Siblings()),
      run_(std::move(run)),
      hooks_(std::move(hooks)),
      nodes_(
          etcd, nodes_prefix_, "following the nodes",
          [this](const std::vector<std::string>&) {
            nodes_known_ = true;
            hooks_.all_changed();
          },
          hooks_.ended),
      active_(
          etcd, keys_.Active(), absl::StrCat("following the attempts of run ", run_),
          [this](const std::vector<std::string>&) { OnActive(); }, hooks_.ended),
      votes_(
          etcd, keys_.AllVotes(), absl::StrCat("following the votes of run ", run_),
          [this](const std::vector<std::string>& keys) { OnVotes(keys); }, hooks_.ended) {}

void SaveWatch::Start() {
  nodes_.Start();
  active_.Start();
}

void SaveWatch::FollowFrom(int64_t sequence) {
  votes_.Forget(keys_.Votes(sequence));
  if (!std::exchange(votes_followed_, true)) votes_.Start();
}

void SaveWatch::FollowAttempts(const std::set<int64_t>& attempts) {
  std::erase_if(attempts_, [&](const auto& attempt) {
    return attempt.first != active_attempt_ && !attempts.contains(attempt.first);
  });
  for (const int64_t attempt : attempts) FollowAttempt(attempt);
}

void SaveWatch::FollowAttempt(int64_t attempt) {
  Attempt& followed = attempts_[attempt];
  if (followed.mirror != nullptr) return;
  followed.mirror = std::make_unique<EtcdMirror>(
      etcd_, keys_.AttemptRanks(attempt), absl::StrCat("following an attempt of run ", run_),
      [this, attempt](const std::vector<std::string>&) {
        attempts_.at(attempt).known = true;
        hooks_.all_changed();
      },
      hooks_.ended);
  followed.mirror->Start();
}

void SaveWatch::OnActive() {
  active_known_ = true;
  active_attempt_ = FirstOf<ledger::v1::ActiveAttempt>(ValuesOf(active_.keys())).attempt();
  if (active_attempt_ != 0) FollowAttempt(active_attempt_);
  hooks_.all_changed();
}

void SaveWatch::OnVotes(const std::vector<std::string>& keys) {
  if (!std::exchange(votes_known_, true)) return hooks_.all_changed();
  std::set<int64_t> sequences;
  for (const std::string& key : keys) {
    int64_t sequence = 0;
    if (absl::SimpleAtoi(key.substr(keys_.AllVotes().size(), 16), &sequence)) sequences.insert(sequence);
  }
  for (const int64_t sequence : sequences) hooks_.changed(sequence);
}

bool SaveWatch::Knows(int64_t attempt) const {
  const auto found = attempts_.find(attempt);
  return nodes_known_ && active_known_ && votes_known_ && found != attempts_.end() && found->second.known;
}

std::vector<KeyValue> SaveWatch::VotesOf(int64_t sequence) const {
  std::vector<KeyValue> votes;
  const auto& keys = votes_.keys();
  const auto end = keys.lower_bound(keys_.Votes(sequence + 1));
  for (auto key = keys.lower_bound(keys_.Votes(sequence)); key != end; ++key) votes.push_back(key->second);
  return votes;
}

CompareAndSwap::Found SaveWatch::Found(int64_t sequence, int64_t attempt) const {
  return {VotesOf(sequence), ValuesOf(attempts_.at(attempt).mirror->keys()), ValuesOf(nodes_.keys()),
          ValuesOf(active_.keys())};
}

SaveView SaveWatch::View(int64_t sequence, const ledger::v1::SaveState& save) const {
  return SaveViewOf(Found(sequence, save.attempt()), save);
}

size_t SaveWatch::NodesOf(int64_t attempt) const { return attempts_.at(attempt).mirror->keys().size(); }

bool SaveWatch::IsOfLiving(const KeyValue& key, const NodeVote& vote) const {
  const auto living = nodes_.keys().find(nodes_prefix_ + LastPartOf(key.key()));
  return living != nodes_.keys().end() && living->second.value() == vote.registration();
}

bool SaveWatch::VotesMayDecide(int64_t sequence, const SaveState& save) const {
  if (!save.ranks().empty()) return true;  // Only some nodes take part.
  const NodeVote::Stage next = save.phase() == SaveState::PROPOSED   ? NodeVote::VOTED
                               : save.phase() == SaveState::ADMITTED ? NodeVote::SEALED
                                                                     : NodeVote::DURABLE;
  size_t said = 0;
  for (const KeyValue& key : VotesOf(sequence)) {
    NodeVote vote;
    vote.ParseFromString(key.value());
    if (vote.has_no() || !IsOfLiving(key, vote)) return true;
    if (vote.stage() >= next) ++said;
  }
  return said >= NodesOf(save.attempt());
}

std::vector<SaveWatch::Vote> SaveWatch::VotesThatCount(int64_t sequence) const {
  std::vector<Vote> counting;
  for (const KeyValue& key : VotesOf(sequence)) {
    Vote vote;
    vote.vote.ParseFromString(key.value());
    vote.revision = key.mod_revision();
    if (!IsOfLiving(key, vote.vote)) continue;
    counting.push_back(std::move(vote));
  }
  return counting;
}

}  // namespace ckptd
