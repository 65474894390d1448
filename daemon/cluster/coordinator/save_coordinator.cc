#include "daemon/cluster/coordinator/save_coordinator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "daemon/cluster/coordinator/save_needs.h"
#include "daemon/cluster/node/node_save.h"
#include "daemon/etcd/etcd_errors.h"
#include "daemon/ledger/save/admission_rules.h"
#include "daemon/ledger/save/save_end.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"

namespace ckptd {

using ledger::v1::NodeVote;
using ledger::v1::SaveState;

SaveCoordinator::SaveCoordinator(Etcd* etcd, Clock* clock, SharedRootIo* root, Options options,
                                 const RunCoordinator::Leadership& leadership, Hooks hooks)
    : clock_(clock),
      root_(root),
      options_(std::move(options)),
      leadership_(leadership),
      keys_(options_.prefix),
      hooks_(std::move(hooks)),
      admission_(etcd, {options_.prefix, options_.node, options_.run}),
      decisions_(etcd, {options_.prefix, options_.node, options_.run}),
      readers_(etcd, {options_.prefix, options_.node, options_.run}),
      states_(
          etcd, keys_.SaveStates(), absl::StrCat("following the saves of run ", options_.run),
          [this](const std::vector<std::string>& keys) { OnStates(keys); },
          [this](const absl::Status& why) { OnLost(why); }),
      watch_(etcd, options_.prefix, options_.node, options_.run,
             {.changed = [this](int64_t sequence) { OnVotes(sequence); },
              .all_changed = [this] { OnWatched(); },
              .ended = [this](const absl::Status& why) { OnLost(why); }}),
      prepared_({clock, root, &admission_, &watch_, &states_}, keys_, leadership_.held,
                {.decided = [this](const SharedSave& save) { OnState(save); },
                 .unused =
                     [this](int64_t sequence) {
                       unused_ = std::max(unused_, sequence);
                       sweep_needed_ = true;
                     },
                 .lost = [this](const absl::Status& why) { OnLost(why); }}),
      unknown_({&decisions_, root, clock}, leadership_.held, options_.run,
               {.settled =
                    [this] {
                      sweep_needed_ = true;
                      AllChanged();
                    },
                .lost = [this](const absl::Status& why) { OnLost(why); }}),
      old_(etcd, clock, {options_.prefix, options_.run, options_.ended_kept_for}, leadership_.held,
           [this](const absl::Status& why) { OnLost(why); }),
      absent_(options_.grace) {}

void SaveCoordinator::Start() {
  states_.Start();
  watch_.Start();
  BeginTerm();
}

// Comes before any decision on a publication, so that no such decision counts before the term has begun in
// the root.
void SaveCoordinator::BeginTerm() {
  if (term_begun_ || beginning_term_ || !term_backoff_.IsOver(clock_->Now())) return;
  beginning_term_ = true;
  root_->BeginTerm(leadership_.term, callbacks_.Guard([this](const absl::Status& begun) {
    beginning_term_ = false;
    term_begun_ = begun.ok();
    term_error_ = begun;
    if (!term_begun_) return term_backoff_.Failed(clock_->Now());
    hooks_.term_begun();
    AllChanged();
  }));
}

// ---- what etcd shows

void SaveCoordinator::OnStates(const std::vector<std::string>& keys) {
  states_known_ = true;
  if (last_sequence_ == 0) sweep_needed_ = true;  // Removes what earlier coordinators have left.
  reading_states_ = true;                         // Which save is published next depends on all.
  for (const std::string& key : keys) {
    SharedSave save;
    const std::string* const value = states_.Find(key);
    if (value == nullptr || !save.state.ParseFromString(*value)) continue;
    if (!absl::SimpleAtoi(key.substr(keys_.SaveStates().size()), &save.sequence)) continue;
    last_sequence_ = std::max(last_sequence_, save.sequence);
    OnState(save);
  }
  reading_states_ = false;
  for (auto& [sequence, save] : saves_) Act(sequence);
  FollowVotes();
  prepared_.Go();
  Sweep();
}

void SaveCoordinator::OnState(const SharedSave& save) {
  if (save.state.phase() == SaveState::OPEN) {
    if (!saves_.contains(save.sequence)) prepared_.OnOpen(save);
    return;
  }
  prepared_.OnOther(save);
  if (HasEnded(save.state)) {
    Ended(save);
  } else {
    Follow(save);
  }
}

// Follows the votes of the saves that have not ended, and of all later saves.
void SaveCoordinator::FollowVotes() {
  std::set<int64_t> attempts = prepared_.attempts();
  int64_t first = last_sequence_ + 1;
  for (const int64_t sequence : prepared_.sequences()) first = std::min(first, sequence);
  for (const auto& [sequence, save] : saves_) {
    first = std::min(first, sequence);
    attempts.insert(save.save.state.attempt());
  }
  watch_.FollowFrom(first);
  watch_.FollowAttempts(attempts);
}

void SaveCoordinator::Follow(const SharedSave& seen) {
  const int64_t sequence = seen.sequence;
  const auto [found, is_new] = saves_.try_emplace(sequence);
  Save& save = found->second;
  if (is_new) {
    save.save = seen;
    save.seen_at = clock_->Now();
    // A prepared save has its directory already, and so has one that was admitted.
    save.inflight = seen.state.inflight();
    save.making = !save.inflight.empty();
  } else if (IsLater(save.save.state, seen.state)) {
    save.save = seen;
  }
  Changed(sequence);
}

void SaveCoordinator::Ended(const SharedSave& save) {
  if (save.state.end().reason() == reason::kIndeterminate) unknown_.OnEnded(save);
  old_.OnEnded(save);
  if (publication_ != nullptr && publication_->sequence() == save.sequence) publication_ = nullptr;
  if (save.state.phase() == SaveState::ENDED || save.sequence <= unused_) sweep_needed_ = true;
  if (saves_.erase(save.sequence) == 0) return;
  AllChanged();  // The next one may be published.
}

void SaveCoordinator::OnVotes(int64_t sequence) {
  const auto save = saves_.find(sequence);
  if (save != saves_.end()) {
    const SaveState& state = save->second.save.state;
    if (!watch_.Knows(state.attempt()) || watch_.VotesMayDecide(sequence, state)) Changed(sequence);
    return;
  }
  if (!prepared_.sequences().contains(sequence)) return;
  FollowVotes();
  prepared_.OnVotes(sequence);
}

void SaveCoordinator::OnWatched() {
  for (const auto& [key, node] : watch_.nodes()) absent_.Back(key.substr(options_.node.Siblings().size()));
  AllChanged();
  prepared_.Go();
}

void SaveCoordinator::Changed(int64_t sequence) {
  const auto save = saves_.find(sequence);
  if (save == saves_.end()) return;
  save->second.changed = true;
  Act(sequence);
}

void SaveCoordinator::AllChanged() {
  for (auto& [sequence, save] : saves_) Changed(sequence);
}

void SaveCoordinator::OnTick() {
  if (lost_) return;
  BeginTerm();
  CheckDeadlines();
  for (auto& [sequence, save] : saves_) Act(sequence);
  if (publication_ != nullptr) publication_->Go();
  prepared_.OnTick();
  unknown_.OnTick();
  old_.OnTick();
  Sweep();
}

void SaveCoordinator::CheckDeadlines() {
  const Instant now = clock_->Now();
  if (absent_.Update(now)) AllChanged();
  for (auto& [sequence, save] : saves_) {
    const Duration wait = std::chrono::milliseconds(save.save.state.admission_ms()) + options_.grace;
    if (now - save.seen_at < wait || save.save.state.phase() != SaveState::PROPOSED) continue;
    if (!std::exchange(save.overdue, true)) Changed(sequence);
  }
}

// ---- decisions

void SaveCoordinator::Act(int64_t sequence) {
  Save& save = saves_.at(sequence);
  if (lost_ || reading_states_ || !save.changed || save.asking || !save.backoff.IsOver(clock_->Now())) return;
  MakeInflight(save);
  if (!watch_.Knows(save.save.state.attempt())) return;
  save.changed = false;
  const SaveView view = watch_.View(sequence, save.save.state);
  Decide(save, view);
  PublishIfNext(save, view);
}

void SaveCoordinator::MakeInflight(Save& save) {
  if (save.save.state.phase() != SaveState::PROPOSED || std::exchange(save.making, true)) return;
  const int64_t sequence = save.save.sequence;
  save.making_since = clock_->Now();
  root_->MakeInflight(save.save.state.tag(), sequence,
                      callbacks_.Guard([this, sequence](const absl::StatusOr<std::string>& name) {
                        const auto found = saves_.find(sequence);
                        if (found == saves_.end()) return;
                        if (name.ok()) found->second.inflight = *name;
                        found->second.unusable = name.status();
                        Changed(sequence);
                      }));
}

void SaveCoordinator::Decide(Save& save, const SaveView& view) {
  const SharedSave& now = save.save;
  if (!MayEnd(now.state)) return;
  if (const std::optional<std::string> node = LostNode(save, view))
    return decisions_.LoseNode(now, leadership_.held, *node, Decided(save));
  if (now.state.phase() == SaveState::PROPOSED && (!save.unusable.ok() || save.overdue)) {
    const ledger::v1::SaveEnd why =
        save.unusable.ok() ? EndByMissingRanks(view, now.state.tag()) : NoDirectory(now, save.unusable);
    return admission_.End(now, leadership_.held, why, Decided(save));
  }
  if (NeedsAdmission(now.state, view, save.inflight))
    return admission_.Decide(now, leadership_.held, save.inflight, Decided(save));
  if (NeedsSettling(now.state, view)) decisions_.Settle(now, leadership_.held, Decided(save));
}

// The ranks of all nodes get this end, also of nodes that can write to the root.
ledger::v1::SaveEnd SaveCoordinator::NoDirectory(const SharedSave& save, const absl::Status& why) const {
  return EndOf(
      Annotate(why, absl::StrCat("node \"", options_.node.name,
                                 "\", which coordinates the run, could not make the directory of the "
                                 "save of ",
                                 save.state.tag())));
}

bool SaveCoordinator::IsOverdue(const std::string& absent) {
  absent_.Absent(absent, clock_->Now());
  return absent_.IsOverdue(absent);
}

// A node whose grace period is over; or one that has registered again and so has lost the memory for which it
// had voted. A node that has registered again may still have its sealed parts, and has the grace period to
// report them.
std::optional<std::string> SaveCoordinator::LostNode(const Save& save, const SaveView& view) {
  for (const auto& [node, ranks] : view.ranks) {
    const auto found = view.votes.find(node);
    const NodeVote vote = found == view.votes.end() ? NodeVote() : found->second;
    if (vote.stage() == NodeVote::DURABLE) continue;
    const auto living = view.registrations.find(node);
    if (living == view.registrations.end()) {
      if (IsOverdue(node)) return node;
    } else if (vote.registration() != living->second) {
      if (vote.stage() == NodeVote::SEALED && !IsOverdue(vote.registration())) continue;
      if (save.save.state.phase() != SaveState::PROPOSED && found != view.votes.end()) return node;
    }
  }
  return std::nullopt;
}

// The callback for the answer to a decision on the save.
SaveCoordinator::Answer SaveCoordinator::Decided(Save& save) {
  save.asking = true;
  return [this, sequence = save.save.sequence](const absl::StatusOr<SharedSave>& answer) {
    const auto found = saves_.find(sequence);
    if (found == saves_.end() || lost_) return;
    Save& decided = found->second;
    decided.asking = false;
    const std::string reason = ReasonOf(answer.status());
    if (reason == ledger_reason::kUnavailable || reason == ledger_reason::kFull) {
      decided.changed = true;
      return decided.backoff.Failed(clock_->Now());
    }
    if (!answer.ok()) return OnLost(answer.status());
    decided.backoff.Succeeded();
    if (IsLater(decided.save.state, answer->state)) {
      decided.save = *answer;
      decided.changed = true;
    }
    Act(sequence);
  };
}

// ---- publication

void SaveCoordinator::PublishIfNext(const Save& save, const SaveView& view) {
  if (publication_ != nullptr) return publication_->Go();
  if (!term_begun_) return;
  const SaveState& state = save.save.state;
  const int64_t sequence = save.save.sequence;
  const bool is_next = saves_.begin()->first == sequence && state.phase() == SaveState::SEALED &&
                       view.AllHave(NodeVote::DURABLE);
  if (is_next && prepared_.MayPrecede(sequence)) {
    saves_.at(sequence).changed = true;  // Look again at the next tick.
    return;
  }
  if (!is_next && state.phase() != SaveState::PUBLISHING) return;
  CheckpointPublication::Options options;
  options.leadership = leadership_.held;
  for (const auto& [node, vote] : view.votes) {
    if (vote.stage() == NodeVote::DURABLE) options.digests[node] = vote.digest();
  }
  options.later_than_us = hooks_.latest_begin_us();
  options.longest_look = options_.visibility + std::chrono::seconds(5);
  publication_ = std::make_unique<CheckpointPublication>(
      CheckpointPublication::Tools{&decisions_, &readers_, root_, clock_}, options, save.save,
      [this](const SharedSave& ended) {
        publication_ = nullptr;
        const auto found = saves_.find(ended.sequence);
        if (found != saves_.end()) found->second.save = ended;
      },
      [this](const absl::Status& why) { OnLost(why); });
  publication_->Go();
}

void SaveCoordinator::SettleSave(const std::string& tag, bool is_checkpoint, UnknownOutcomes::Answer answer) {
  if (!states_known_)
    return answer(MakeError(absl::StatusCode::kFailedPrecondition, reason::kOutcomePending,
                            "this node has just become coordinator, and reads what etcd knows of the saves",
                            {{"tag", tag}}));
  for (const auto& [sequence, save] : saves_) {
    if (save.save.state.tag() != tag || unknown_.HasTag(tag)) continue;
    const std::string waits_for = WaitsFor();
    return answer(
        MakeError(absl::StatusCode::kFailedPrecondition, reason::kOutcomePending,
                  absl::StrCat("the save of ", tag, ", sequence ", sequence,
                               ", has not ended, and its end will be known",
                               waits_for.empty() ? "" : absl::StrCat("; now the run waits for ", waits_for)),
                  {{"tag", tag}}));
  }
  unknown_.Settle(tag, is_checkpoint, std::move(answer));
}

bool SaveCoordinator::idle() const {
  return states_known_ && term_begun_ && saves_.empty() && unknown_.sequences().empty() && !sweep_needed_ &&
         !sweeping_;
}

std::string SaveCoordinator::Obstacle() const {
  if (!term_error_.ok())
    return absl::StrCat("the root, in which this node cannot begin to coordinate (", term_error_.message(),
                        ")");
  return publication_ == nullptr ? "" : publication_->waits_for();
}

std::string SaveCoordinator::WaitsFor() const {
  if (const std::string obstacle = Obstacle(); !obstacle.empty() || publication_ != nullptr) return obstacle;
  if (saves_.empty()) return "";
  const SharedSave& oldest = saves_.begin()->second.save;
  return absl::StrCat("the save of ", oldest.state.tag(), ", sequence ", oldest.sequence, ", which is ",
                      SaveState::Phase_Name(oldest.state.phase()));
}

const SaveCoordinator::Save* SaveCoordinator::Find(int64_t attempt, const std::string& tag,
                                                   int64_t ordinal) const {
  for (const auto& [sequence, save] : saves_) {
    const SaveState& state = save.save.state;
    if (state.attempt() == attempt && state.tag() == tag && state.ordinal() == ordinal) return &save;
  }
  return nullptr;
}

std::vector<std::string> SaveCoordinator::MissedNodes(int64_t attempt, const std::string& tag,
                                                      int64_t ordinal) const {
  const Save* const save = Find(attempt, tag, ordinal);
  if (save == nullptr || !watch_.Knows(attempt)) return {};
  const SaveState& state = save->save.state;
  const SaveView view = watch_.View(save->save.sequence, state);
  if (state.phase() == SaveState::PROPOSED) return view.Behind(NodeVote::VOTED);
  if (state.phase() == SaveState::ADMITTED) return view.Behind(NodeVote::SEALED);
  if (state.phase() == SaveState::SEALED) return view.Behind(NodeVote::DURABLE);
  return {};
}

std::optional<Instant> SaveCoordinator::DirectoryAwaitedSince(int64_t attempt, const std::string& tag,
                                                              int64_t ordinal) const {
  const Save* const save = Find(attempt, tag, ordinal);
  const bool awaited = save != nullptr && save->making && save->inflight.empty() &&
                       save->save.state.phase() == SaveState::PROPOSED;
  return awaited ? std::optional(save->making_since) : std::nullopt;
}

void SaveCoordinator::Sweep() {
  if (lost_ || !sweep_needed_ || sweeping_ || last_sequence_ == 0 || !sweep_backoff_.IsOver(clock_->Now()))
    return;
  sweep_needed_ = false;
  sweeping_ = true;
  std::set<int64_t> unfinished = prepared_.sequences();
  unfinished.merge(unknown_.sequences());
  for (const auto& [sequence, save] : saves_) unfinished.insert(sequence);
  root_->Sweep(last_sequence_, unfinished, callbacks_.Guard([this](const absl::Status& swept) {
    sweeping_ = false;
    if (swept.ok()) return sweep_backoff_.Succeeded();
    sweep_needed_ = true;
    sweep_backoff_.Failed(clock_->Now());
  }));
}

void SaveCoordinator::OnLost(const absl::Status& why) {
  if (std::exchange(lost_, true)) return;
  publication_ = nullptr;
  hooks_.lost(why);
}

}  // namespace ckptd
