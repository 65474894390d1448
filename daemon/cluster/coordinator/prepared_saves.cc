#include "daemon/cluster/coordinator/prepared_saves.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "daemon/etcd/etcd_errors.h"
#include "daemon/ledger/save/admission_rules.h"
#include "storage/base/errors.h"

namespace ckptd {

using ledger::v1::NodeVote;
using ledger::v1::SaveProposal;
using ledger::v1::SaveState;

namespace {

// Stands for the tag, which is not known yet, in the name of an in-flight directory.
constexpr char kNoTag[] = "next";
// How long nodes that begin a save together have to vote, from the first vote on.
constexpr Duration kVotesTogether = std::chrono::milliseconds(100);

SaveProposal* FirstProposal(std::vector<SaveWatch::Vote>& votes) {
  const auto first = std::min_element(votes.begin(), votes.end(),
                                      [](const auto& a, const auto& b) { return a.revision < b.revision; });
  if (first == votes.end() || !first->vote.has_proposal()) return nullptr;
  return first->vote.mutable_proposal();
}

}  // namespace

PreparedSaves::PreparedSaves(Tools tools, LedgerKeys keys, CompareAndSwap::Held leadership, Hooks hooks)
    : tools_(tools), keys_(std::move(keys)), leadership_(std::move(leadership)), hooks_(std::move(hooks)) {}

std::set<int64_t> PreparedSaves::sequences() const {
  std::set<int64_t> sequences;
  for (const auto& [sequence, prepared] : prepared_) sequences.insert(sequence);
  return sequences;
}

bool PreparedSaves::MayPrecede(int64_t sequence) const {
  const bool open = !prepared_.empty() && prepared_.begin()->first < sequence;
  return open || (making_ != 0 && making_ < sequence);
}

std::set<int64_t> PreparedSaves::attempts() const {
  std::set<int64_t> attempts;
  for (const auto& [sequence, prepared] : prepared_) {
    for (const SaveWatch::Vote& vote : tools_.watch->VotesThatCount(sequence))
      attempts.insert(vote.vote.proposal().attempt());
  }
  return attempts;
}

// ---- what etcd shows

void PreparedSaves::OnOpen(const SharedSave& save) {
  last_ = std::max(last_, save.sequence);
  const auto [prepared, is_new] = prepared_.try_emplace(save.sequence);
  if (is_new) prepared->second.save = save;
}

void PreparedSaves::OnOther(const SharedSave& save) {
  last_ = std::max(last_, save.sequence);
  if (save.state.phase() != SaveState::PROPOSED && !save.state.tag().empty())
    saving_ = std::max(saving_, save.state.attempt());
  prepared_.erase(save.sequence);
}

void PreparedSaves::OnVotes(int64_t sequence) {
  const auto prepared = prepared_.find(sequence);
  if (prepared == prepared_.end()) return;
  prepared->second.changed = true;
  Act(prepared->second);
}

void PreparedSaves::OnTick() {
  for (auto& [sequence, prepared] : prepared_) prepared.changed = true;
  Go();
}

void PreparedSaves::Go() {
  for (auto& [sequence, prepared] : prepared_) Act(prepared);
  MakeNext();
}

// ---- preparing a save

void PreparedSaves::MakeNext() {
  const bool has_one = !prepared_.empty() && prepared_.rbegin()->first == last_;
  const bool saves = saving_ != 0 && saving_ == tools_.watch->active();
  if (making_ != 0 || has_one || !saves || !backoff_.IsOver(tools_.clock->Now())) return;
  const int64_t sequence = making_ = last_ + 1;
  tools_.root->MakeInflight(kNoTag, sequence,
                            callbacks_.Guard([this, sequence](const absl::StatusOr<std::string>& inflight) {
                              Made(sequence, inflight);
                            }));
}

void PreparedSaves::Made(int64_t sequence, const absl::StatusOr<std::string>& inflight) {
  if (!inflight.ok()) {
    making_ = 0;
    return backoff_.Failed(tools_.clock->Now());
  }
  tools_.admission->Open(sequence, leadership_, *inflight,
                         [this, sequence, inflight = *inflight](const absl::StatusOr<SharedSave>& answer) {
                           Opened(sequence, inflight, answer);
                         });
}

void PreparedSaves::Opened(int64_t sequence, const std::string& inflight,
                           const absl::StatusOr<SharedSave>& answer) {
  making_ = 0;
  if (!answer.ok()) {
    if (!IsTransient(answer.status(), &backoff_)) hooks_.lost(answer.status());
    return;
  }
  backoff_.Succeeded();
  last_ = std::max(last_, answer->sequence);
  if (answer->sequence != sequence || answer->state.inflight() != inflight) hooks_.unused(sequence);
  // The watch may already have shown the save. If it has not, and another node has given the sequence to its
  // own save, the coordinator must know that save before it prepares the next one, which comes later.
  const bool shown = tools_.states->Find(keys_.SaveState(answer->sequence)) != nullptr;
  if (answer->state.phase() == SaveState::OPEN && !shown) OnOpen(*answer);
  if (!answer->state.tag().empty() && !shown) hooks_.decided(*answer);
  Go();
}

// ---- deciding

void PreparedSaves::Act(Prepared& prepared) {
  if (!prepared.changed || prepared.asking || !prepared.backoff.IsOver(tools_.clock->Now())) return;
  prepared.changed = false;
  if (prepared.save.sequence < last_) {
    prepared.asking = true;
    return tools_.admission->Close(prepared.save, leadership_, Decided(prepared.save.sequence));
  }
  Decide(prepared);
}

void PreparedSaves::Decide(Prepared& prepared) {
  std::vector<SaveWatch::Vote> votes = tools_.watch->VotesThatCount(prepared.save.sequence);
  const SaveProposal* const proposal = FirstProposal(votes);
  if (proposal == nullptr || !tools_.watch->Knows(proposal->attempt())) return;
  SaveState named = prepared.save.state;
  NameSave(*proposal, &named);
  const Instant now = tools_.clock->Now();
  if (!prepared.voted_at) prepared.voted_at = now;
  const bool agree = std::all_of(votes.begin(), votes.end(),
                                 [&named](const auto& vote) { return IsOf(vote.vote.proposal(), named); });
  const bool may_wait = agree && now - *prepared.voted_at < kVotesTogether;
  const bool has_no =
      std::any_of(votes.begin(), votes.end(), [](const auto& vote) { return vote.vote.has_no(); });
  const bool all_may_have = votes.size() >= tools_.watch->NodesOf(named.attempt()) || !named.ranks().empty();
  const bool may_be_over = named.attempt() < tools_.watch->active();
  if (may_wait && !has_no && !all_may_have && !may_be_over) return;
  const SaveView view = tools_.watch->View(prepared.save.sequence, named);
  const bool decides = has_no || view.AllHave(NodeVote::VOTED) || named.attempt() < view.active;
  if (may_wait && !decides) return;
  prepared.asking = true;
  tools_.admission->DecideOpen(prepared.save, leadership_, *proposal, may_wait,
                               GuessOf(prepared.save, *proposal), Decided(prepared.save.sequence));
}

// If this save still has the last sequence, the sequence key was last written with the save's first state,
// and so has the mod_revision of that state.
std::optional<CompareAndSwap::Found> PreparedSaves::GuessOf(const SharedSave& save,
                                                            const SaveProposal& proposal) const {
  const auto state = tools_.states->keys().find(keys_.SaveState(save.sequence));
  if (state == tools_.states->keys().end()) return std::nullopt;
  CompareAndSwap::Found found = tools_.watch->Found(save.sequence, proposal.attempt());
  found.emplace_back();  // Its index.
  ledger::v1::LastSequence last;
  last.set_sequence(save.sequence);
  etcdserverpb::KeyValue& key = found.emplace_back().emplace_back();
  key.set_key(keys_.Sequence());
  key.set_value(last.SerializeAsString());
  key.set_mod_revision(state->second.mod_revision());
  found.push_back({state->second});
  return found;
}

SaveAdmission::Answer<SharedSave> PreparedSaves::Decided(int64_t sequence) {
  return [this, sequence](const absl::StatusOr<SharedSave>& answer) {
    const auto found = prepared_.find(sequence);
    if (found == prepared_.end()) return;
    Prepared& prepared = found->second;
    prepared.asking = false;
    if (!answer.ok()) {
      if (!IsTransient(answer.status(), &prepared.backoff)) hooks_.lost(answer.status());
      return;
    }
    prepared.backoff.Succeeded();
    if (answer->state.phase() == SaveState::OPEN) return Act(prepared);
    prepared_.erase(found);
    hooks_.decided(*answer);
  };
}

bool PreparedSaves::IsTransient(const absl::Status& error, Backoff* backoff) {
  const std::string reason = ReasonOf(error);
  if (reason != ledger_reason::kUnavailable && reason != ledger_reason::kFull) return false;
  backoff->Failed(tools_.clock->Now());
  return true;
}

}  // namespace ckptd
