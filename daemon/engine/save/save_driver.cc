#include "daemon/engine/save/save_driver.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/engine/save/ended_saves.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"

namespace ckptd {
namespace {

absl::Status TrainersEnded(const SaveId& id) {
  return MakeError(
      absl::StatusCode::kAborted, reason::kSessionLost,
      absl::StrCat("the trainers of this node that had begun the save of ", id.tag, " have ended"),
      {{"tag", id.tag}});
}

// Whether an earlier daemon of this node had its part, which has gone with it.
bool HasNoPart(const Save& save) {
  if (save.phase() >= SavePhase::kAdmitted) return false;
  const std::vector<int> ranks = save.RanksHere();
  return std::any_of(ranks.begin(), ranks.end(), [&save](int rank) { return save.Contributes(rank); });
}

absl::Status MemoryGone(const SaveId& id) {
  return MakeError(absl::StatusCode::kAborted, reason::kStagedLost,
                   absl::StrCat("an earlier daemon of this node had room for the save of ", id.tag,
                                ", and has ended; save again"),
                   {{"tag", id.tag}});
}

}  // namespace

SaveDriver::SaveDriver(Clock* clock, EngineObserver* observer, SaveTable* saves, Hooks hooks)
    : clock_(clock), observer_(observer), saves_(saves), hooks_(std::move(hooks)) {}

void SaveDriver::Start(Run* run) {
  run->authority->Start({
      .changed = [this, run](const SaveId& id, const Decision& decision) { OnChanged(run, id, decision); },
      .failed = [this, run](const SaveId& id, const absl::Status& why) { OnEnded(run, id, why); },
      .released = [this, run](const SaveId& id) { OnReleased(run, id); },
      .removed = [this, run](int64_t sequence) { hooks_.removed(run, sequence); },
      .damage_changed =
          [this, run](int64_t sequence, const std::optional<storage::v1::Damage>& damage,
                      absl::AnyInvocable<void()> recorded) {
            hooks_.damage_changed(run, sequence, damage, std::move(recorded));
          },
      .pin_changed = [this, run](const std::string& tag, int64_t sequence,
                                 bool pinned) { hooks_.pin_changed(run, tag, sequence, pinned); },
      .delete_requested =
          [this, run](const std::string&, int64_t sequence, bool force, Callback<absl::Status> deleted) {
            hooks_.delete_requested(run, sequence, force, std::move(deleted));
          },
      .restore_requested =
          [this, run](const SharedUploads::Restore& restore,
                      Callback<absl::StatusOr<SharedUploads::Newest>> brought) {
            hooks_.restore_requested(run, restore, std::move(brought));
          },
      .root_changed = [this, run] { hooks_.root_changed(run); },
      .newest_committed =
          [this, run](int64_t sequence, const std::optional<storage::v1::RetentionPolicy>& retention) {
            hooks_.newest_committed(run, sequence, retention);
          },
      .leadership_changed = [this, run] { hooks_.leadership_changed(run); },
      .stepped_down =
          [this, run](Duration silence) {
            observer_->OnWarning(
                absl::StrCat("this node no longer coordinates ", run->path,
                             ", so that another one does: its file system has not answered for ",
                             silence / std::chrono::seconds(1), " s"));
          },
      .coordinator_changed =
          [this, run](const std::string& node, int64_t term) {
            observer_->OnInfo(absl::StrCat("node \"", node, "\" coordinates the saves in ", run->path,
                                           " from now on (term ", term, ")"));
          },
      .noticed =
          [this, run](const std::string& message) {
            observer_->OnWarning(absl::StrCat("in the root ", run->path, ", ", message));
          },
      .lost =
          [this, run](const absl::Status& why) {
            observer_->OnWarning(absl::StrCat("this node is no longer registered, so its unsealed saves in ",
                                              run->path, " are lost: ", std::string(why.message())));
          },
  });
}

// ---- this node

void SaveDriver::OnAccepted(Save* save) {
  save->node.promised = true;
  save->run->authority->Accept(save->key, save->retention);
}

void SaveDriver::OnSealedHere(Save* save) { save->run->authority->Sealed(save->key); }

void SaveDriver::OnGivingUp(Save* save, const absl::Status& why) {
  save->run->authority->Fail(save->key, why);
}

// ---- all nodes

void SaveDriver::OnChanged(Run* run, const SaveId& id, const Decision& decision) {
  if (decision.phase == Decision::kEnded) return OnEnded(run, id, decision.end);
  Save* save = run->FindSave(id);
  if (save == nullptr) {
    if (decision.sequence == 0) return;  // It has not begun here yet.
    save = BeginHere(run, id, decision);
  }
  if (save == nullptr || save->phase() == SavePhase::kFailing) return;
  if (decision.phase == Decision::kProposed || decision.sequence != 0)
    saves_->Renumber(save, decision.sequence);
  switch (decision.phase) {
    case Decision::kAdmitted:
      return OnAdmitted(save, decision);
    case Decision::kSealed:
    case Decision::kPublishing:
      if (HasNoPart(*save)) return hooks_.fail(save, MemoryGone(save->key));
      if (decision.phase == Decision::kSealed) save->life.Postponed();
      if (decision.phase == Decision::kPublishing) save->life.Publishing();
      return OnSealedEverywhere(save);  // Last: what follows from it may end the save.
    case Decision::kCommitted:
      return OnCommitted(save);
    case Decision::kUnknown:
      return hooks_.indeterminate(save, decision.end);
    case Decision::kProposed:
    case Decision::kEnded:
      return;
  }
}

// For the first decision that reaches this node on a save. Null: this node has no part of it.
Save* SaveDriver::BeginHere(Run* run, const SaveId& id, const Decision& decision) {
  const bool committed = decision.phase == Decision::kCommitted;
  if (committed || decision.phase == Decision::kUnknown) {
    hooks_.begun(*run, id, committed ? CommittedAlready(id) : decision.end);
    return nullptr;
  }
  hooks_.begun(*run, id, decision.sequence);
  Save* save = run->FindSave(id);
  if (save == nullptr) run->authority->Fail(id, TrainersEnded(id));
  return save;
}

void SaveDriver::OnAdmitted(Save* save, const Decision& decision) {
  if (save->phase() >= SavePhase::kAdmitted) return;
  if (save->phase() != SavePhase::kAccepted) return hooks_.fail(save, MemoryGone(save->key));
  save->node.inflight = decision.inflight;
  save->life.Admitted();
  save->admitted_at = clock_->Now();
  save->WaitFor(WaitsFor::kNothing, "");
  hooks_.admitted(save);
}

void SaveDriver::OnSealedEverywhere(Save* save) {
  if (!save->sealed()) hooks_.sealed(save);
}

// Also for a save that this node has asked to end: the publication was decided before that request.
void SaveDriver::OnCommitted(Save* save) {
  if (save->phase() == SavePhase::kLoading) return;
  OnSealedEverywhere(save);
  save->life.Committed();
  save->run->authority->LoadCheckpoint(
      save->key.tag, save->sequence,
      [this, id = save->id](absl::StatusOr<LoadedCheckpoint> loaded) { OnLoaded(id, std::move(loaded)); });
}

void SaveDriver::OnLoaded(int64_t save_id, absl::StatusOr<LoadedCheckpoint> loaded) {
  Save* save = saves_->Find(save_id);
  if (save == nullptr) return;
  if (loaded.ok()) return hooks_.committed(save, std::move(loaded->checkpoint), std::move(loaded->pointers));
  observer_->OnWarning(
      absl::StrCat("the checkpoint ", save->run->path, "/", save->key.tag,
                   " is committed and could not be read yet: ", std::string(loaded.status().message())));
  hooks_.committed_unread(save);
}

void SaveDriver::OnEnded(Run* run, const SaveId& id, const absl::Status& why) {
  Save* save = run->FindSave(id);
  if (save == nullptr) return hooks_.begun(*run, id, why);
  hooks_.ended(save, why);
}

void SaveDriver::OnReleased(Run* run, const SaveId& id) {
  Save* save = run->FindSave(id);
  if (save == nullptr) return;
  save->node.released = true;
  if (save->phase() == SavePhase::kFailing) hooks_.continue_failing(save);
}

}  // namespace ckptd
