#include "daemon/cluster/saves_over_registrations.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/cluster/node/node_save.h"
#include "daemon/etcd/etcd_errors.h"
#include "daemon/ledger/keys/ledger_reasons.h"
#include "daemon/ledger/save/save_end.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"

namespace ckptd {

using ledger::v1::SaveState;
using Decision = Authority::Decision;

namespace {

SaveName NameOf(const SaveId& save) { return {save.attempt, save.tag, save.ordinal}; }
SaveId IdOf(const SaveName& name) { return {name.attempt, name.tag, name.ordinal}; }

absl::Status NotRegistered(const absl::Status& why) {
  constexpr char kWhat[] = "the save was not begun before its deadline";
  if (!why.ok()) return Annotate(why, kWhat);
  return MakeError(absl::StatusCode::kUnavailable, ledger_reason::kUnavailable,
                   absl::StrCat(kWhat,
                                ": this node is not registered in etcd. Look whether it can reach etcd "
                                "(ckptctl status)"));
}

absl::Status Skipped(const std::string& why) {
  return MakeError(absl::StatusCode::kAborted, reason::kSkipped, why);
}

absl::Status NodeEnds(const std::string& node) {
  return MakeError(
      absl::StatusCode::kFailedPrecondition, ledger_reason::kNodeLost,
      absl::StrCat("the daemon of node \"", node,
                   "\" was asked to end, and its files of this save are not durable; save again"));
}

absl::Status LostInMemory(const absl::Status& why) {
  return MakeError(
      absl::StatusCode::kAborted, reason::kStagedLost,
      absl::StrCat("this node has lost its registration in etcd while its ranks were writing the save; save "
                   "again",
                   why.ok() ? "" : ". ", std::string(why.message())));
}

// Of a save that has ended.
Decision EndDecision(const SharedSave& save) {
  if (save.state.phase() == SaveState::COMMITTED)
    return {.phase = Decision::kCommitted, .sequence = save.sequence, .inflight = save.state.inflight()};
  const absl::Status end = ErrorOf(save.state.end());
  const bool is_unknown = ReasonOf(end) == reason::kIndeterminate;
  return {.phase = is_unknown ? Decision::kUnknown : Decision::kEnded,
          .sequence = save.sequence,
          .inflight = save.state.inflight(),
          .end = end};
}

}  // namespace

// ---- requests of the engine

void SavesOverRegistrations::Begin(const SaveId& save, Instant admission_deadline,
                                   const std::vector<int>& ranks) {
  const auto [saving, is_new] = savings_.try_emplace(save);
  if (!is_new && !saving->second.given_up.ok()) return RepeatFailure(save);
  if (!is_new) return;
  if (const absl::Status may = options_.may_begin(); !may.ok()) return Refuse(save, may);
  saving->second.deadline = admission_deadline;
  saving->second.ranks = ranks;
  if (saves_ != nullptr) saves_->Begin(NameOf(save), admission_deadline, ranks);
}

void SavesOverRegistrations::SkipAfter(const SaveId& save, Duration silence) {
  const auto saving = savings_.find(save);
  if (saving == savings_.end()) return;
  saving->second.skip_after = silence;
  if (saves_ != nullptr) saves_->SkipAfter(NameOf(save), silence);
}

// Etcd is not told of it. The engine may have promised the memory for it before it is told.
void SavesOverRegistrations::Refuse(const SaveId& save, const absl::Status& why) {
  savings_.at(save).given_up = why;
  options_.post(callbacks_.Guard([this, save, why] {
    hooks_.failed(save, why);
    OnReleased(save);
  }));
}

// A rank that begins it later is told the same.
void SavesOverRegistrations::RepeatFailure(const SaveId& save) {
  options_.post(
      callbacks_.Guard([this, save, why = savings_.at(save).given_up] { hooks_.failed(save, why); }));
}

void SavesOverRegistrations::Accept(const SaveId& save,
                                    const std::optional<storage::v1::RetentionPolicy>& retention) {
  const auto saving = savings_.find(save);
  if (saving == savings_.end()) return;
  saving->second.accepted = true;
  saving->second.retention = retention;
  if (saves_ != nullptr) saves_->Accept(NameOf(save), retention);
}

void SavesOverRegistrations::Fail(const SaveId& save, const absl::Status& why) {
  const auto saving = savings_.find(save);
  if (saving == savings_.end() || saving->second.failed) return;
  saving->second.failed = why;
  if (saves_ != nullptr) saves_->Fail(NameOf(save), why);
}

void SavesOverRegistrations::Sealed(const SaveId& save) {
  const auto saving = savings_.find(save);
  if (saving == savings_.end()) return;
  saving->second.sealed = true;
  if (saves_ != nullptr) saves_->Sealed(NameOf(save));
}

void SavesOverRegistrations::Durable(const SaveId& save, const std::string& digest) {
  const auto saving = savings_.find(save);
  if (saving == savings_.end()) return;
  saving->second.digest = digest;
  if (saves_ != nullptr) saves_->Durable(NameOf(save), digest);
}

void SavesOverRegistrations::FailUndurable(const absl::Status& why) {
  for (const auto& [save, saving] : savings_) {
    if (saving.digest.empty() && saving.given_up.ok()) Fail(save, why);
  }
}

void SavesOverRegistrations::EndAll(Instant deadline, absl::AnyInvocable<void()> ended) {
  if (saves_ == nullptr) return ended();  // The other nodes cannot be told.
  FailUndurable(NodeEnds(node_name_));
  all_ended_ = std::move(ended);
  end_all_by_ = deadline;
}

void SavesOverRegistrations::FollowEndOfAll() {
  if (all_ended_ == nullptr) return;
  const bool waits = std::any_of(savings_.begin(), savings_.end(), [](const auto& saving) {
    return saving.second.digest.empty() && saving.second.given_up.ok();
  });
  if (!waits || clock_->Now() >= end_all_by_) std::exchange(all_ended_, nullptr)();
}

std::string SavesOverRegistrations::WaitsFor(const SaveId& save, const SaveCoordinator* coordinator) const {
  if (!savings_.contains(save)) return "";
  if (saves_ == nullptr) {
    const absl::Status why = options_.why_unregistered();
    return why.ok() ? "this node to be registered in etcd"
                    : absl::StrCat("etcd: ", std::string(why.message()));
  }
  const std::string what = saves_->WaitsFor(NameOf(save));
  if (coordinator == nullptr || what.empty()) return what;
  const std::vector<std::string> missed = coordinator->MissedNodes(save.attempt, save.tag, save.ordinal);
  if (!missed.empty()) return absl::StrCat(what, " (missing: node ", absl::StrJoin(missed, ", node "), ")");
  const std::string obstacle = coordinator->Obstacle();
  return obstacle.empty() ? what : absl::StrCat(what, "; this node, which coordinates, waits for ", obstacle);
}

std::vector<SaveId> SavesOverRegistrations::Unfinished() const {
  std::vector<SaveId> unfinished;
  for (const auto& [save, saving] : savings_) {
    if (saving.given_up.ok()) unfinished.push_back(save);
  }
  return unfinished;
}

// ---- decisions of etcd

SharedSaves::Hooks SavesOverRegistrations::SavesHooks() {
  return {.changed = [this](const SaveName& name, const SharedSave& state) { OnChanged(IdOf(name), state); },
          .failed = [this](const SaveName& name, const absl::Status& why) { OnFailed(IdOf(name), why); },
          .other_committed = hooks_.other_committed,
          .newest_committed = hooks_.newest_committed,
          .released = [this](const SaveName& name) { OnReleased(IdOf(name)); },
          .lost = hooks_.lost};
}

void SavesOverRegistrations::OnChanged(const SaveId& save, const SharedSave& state) {
  const auto found = savings_.find(save);
  if (found == savings_.end() || !found->second.given_up.ok()) return;
  Saving& saving = found->second;
  Decision decision;
  decision.sequence = state.sequence;
  decision.inflight = state.state.inflight();
  switch (state.state.phase()) {
    case SaveState::ADMITTED:
      if (std::exchange(saving.admitted, true)) return;
      decision.phase = Decision::kAdmitted;
      break;
    case SaveState::SEALED:
      if (std::exchange(saving.told_sealed, true)) return;
      decision.phase = Decision::kSealed;
      break;
    case SaveState::PUBLISHING:
      saving.told_sealed = true;
      decision.phase = Decision::kPublishing;
      break;
    case SaveState::COMMITTED:
      hooks_.committed(state);
      decision = EndDecision(state);
      break;
    case SaveState::ENDED:
      decision = EndDecision(state);
      break;
    default:
      decision.phase = Decision::kProposed;
  }
  if (HasEnded(state.state)) savings_.erase(found);
  hooks_.changed(save, decision);
  if (state.state.moved_in() != 0) hooks_.moved_in();
}

void SavesOverRegistrations::OnFailed(const SaveId& save, const absl::Status& why) {
  const auto found = savings_.find(save);
  if (found == savings_.end() || !found->second.given_up.ok()) return;
  found->second.given_up = why;
  if (found->second.released) savings_.erase(found);
  hooks_.failed(save, why);
}

// A later registration may be told again.
void SavesOverRegistrations::OnReleased(const SaveId& save) {
  const auto found = savings_.find(save);
  if (found == savings_.end() || std::exchange(found->second.released, true)) return;
  if (!found->second.given_up.ok()) savings_.erase(found);
  hooks_.released(save);
}

// ---- registrations

// A rank must not copy into a save that cannot become a checkpoint any more, however long the next
// registration takes.
void SavesOverRegistrations::FailUnsealed() {
  std::vector<SaveId> lost;
  for (const auto& [save, saving] : savings_) {
    if (saving.admitted && !saving.sealed && !saving.failed && saving.given_up.ok()) lost.push_back(save);
  }
  const absl::Status why = options_.why_unregistered();
  for (const SaveId& save : lost) OnFailed(save, LostInMemory(why));
}

void SavesOverRegistrations::BeginRegistration(const std::string& prefix, const NodeIdentity& node) {
  node_name_ = node.name;
  saves_ = std::make_unique<SharedSaves>(
      etcd_, clock_, SharedSaves::Options{prefix, node, options_.run, options_.post}, SavesHooks());
  saves_->Start();
  // A hook may end or add some.
  std::vector<SaveId> given_up;
  for (auto& [save, saving] : savings_) saving.unregistered_since.reset();
  const std::map<SaveId, Saving> savings = savings_;
  for (const auto& [save, saving] : savings) {
    if (saving.given_up.ok()) {
      Continue(save, saving);
    } else {
      given_up.push_back(save);
    }
  }
  // What an earlier registration has promised counts no more: the coordinator ends what was admitted by it.
  for (const SaveId& save : given_up) OnReleased(save);
}

void SavesOverRegistrations::Continue(const SaveId& save, const Saving& saving) {
  const SaveName name = NameOf(save);
  const bool durable = !saving.digest.empty();
  // What is durable may be a checkpoint by now, also if this node has asked to end it: it has no deadline.
  if (saving.sealed && (durable || !saving.failed)) {
    saves_->BeginSealed(name, saving.ranks);
    if (durable) saves_->Durable(name, saving.digest);
    if (saving.failed) saves_->Fail(name, *saving.failed);
    return;
  }
  saves_->Begin(name, saving.deadline, saving.ranks, /*was_known=*/saving.admitted);
  if (saving.skip_after) saves_->SkipAfter(name, *saving.skip_after);
  if (saving.failed) return saves_->Fail(name, *saving.failed);
  if (saving.accepted) saves_->Accept(name, saving.retention);
}

void SavesOverRegistrations::OnTick(const SaveCoordinator* coordinator) {
  if (saves_ != nullptr) {
    if (coordinator != nullptr) SkipWhereFilesHang(*coordinator);
    saves_->OnTick();
  } else {
    ExpireWithoutRegistration();
  }
  FollowEndOfAll();
  AnswerAwaitedEnds();
}

// From the listing of the registration on, etcd shows each save of an earlier daemon that it has not forgotten.
void SavesOverRegistrations::AnswerAwaitedEnds() {
  if (awaited_ends_.empty() || revision() == 0) return;
  std::vector<AwaitedEnd> still;
  std::vector<std::pair<AwaitedEnd, std::optional<Decision>>> over;
  for (AwaitedEnd& awaited : std::exchange(awaited_ends_, {})) {
    const std::optional<SharedSave> shown = saves_->ShownAs(NameOf(awaited.save));
    if (shown && !HasEnded(shown->state)) {
      still.push_back(std::move(awaited));
    } else {
      over.emplace_back(std::move(awaited), shown ? std::optional(EndDecision(*shown)) : std::nullopt);
    }
  }
  awaited_ends_ = std::move(still);
  for (auto& [awaited, end] : over) awaited.ended(end);
}

// SharedSaves does that while there is a registration.
void SavesOverRegistrations::ExpireWithoutRegistration() {
  const Instant now = clock_->Now();
  std::vector<std::pair<SaveId, absl::Status>> over;
  const absl::Status why = options_.why_unregistered();
  for (auto& [save, saving] : savings_) {
    if (saving.admitted || saving.sealed || !saving.given_up.ok()) continue;
    if (!saving.unregistered_since) saving.unregistered_since = now;
    if (now >= saving.deadline) {
      over.emplace_back(save, NotRegistered(why));
    } else if (saving.skip_after && now - *saving.unregistered_since >= *saving.skip_after) {
      over.emplace_back(
          save, Skipped(why.ok() ? "this node is not registered in etcd. Look whether it can reach etcd "
                                   "(ckptctl status)"
                                 : std::string(why.message())));
    }
  }
  for (const auto& [save, end] : over) OnFailed(save, end);
}

// All nodes would wait for the directory that this one makes as the coordinator.
void SavesOverRegistrations::SkipWhereFilesHang(const SaveCoordinator& coordinator) {
  const Instant now = clock_->Now();
  for (const auto& [save, saving] : savings_) {
    if (!saving.skip_after || saving.admitted || saving.failed || !saving.given_up.ok()) continue;
    const std::optional<Instant> since =
        coordinator.DirectoryAwaitedSince(save.attempt, save.tag, save.ordinal);
    if (!since || now - *since < *saving.skip_after) continue;
    Fail(save, Skipped(absl::StrCat("the file system of node \"", node_name_, "\", which coordinates ",
                                    options_.run, ", has not made the directory of the save for ",
                                    *saving.skip_after / std::chrono::seconds(1), " s")));
  }
}

}  // namespace ckptd
