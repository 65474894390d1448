#include "daemon/cluster/coordinator/checkpoint_publication.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "daemon/etcd/etcd_errors.h"
#include "daemon/ledger/keys/ledger_reasons.h"
#include "daemon/ledger/save/save_end.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"

namespace ckptd {

using ledger::v1::SaveState;

CheckpointPublication::CheckpointPublication(Tools tools, Options options, SharedSave save,
                                             std::function<void(const SharedSave&)> ended,
                                             std::function<void(const absl::Status&)> lost)
    : tools_(tools),
      options_(std::move(options)),
      save_(std::move(save)),
      ended_(std::move(ended)),
      lost_(std::move(lost)),
      step_(save_.state.phase() == SaveState::PUBLISHING ? Step::kDecide : Step::kFindReplaced) {}

// ---- steps

template <typename Answer>
auto CheckpointPublication::Then(void (CheckpointPublication::*done)(const Answer&)) {
  return callbacks_.Guard([this, done](const Answer& answer) {
    busy_ = false;
    (this->*done)(answer);
  });
}

void CheckpointPublication::Go() {
  if (busy_ || !backoff_.IsOver(tools_.clock->Now())) return;
  busy_ = true;
  switch (step_) {
    case Step::kFindReplaced:
      return FindReplaced();
    case Step::kFindParts:
      return FindParts();
    case Step::kDecide:
      return Decide();
    case Step::kLook:
      return Look();
    case Step::kPublish:
      return Publish();
    case Step::kEvict:
      return Evict();
    case Step::kFindPointers:
      return FindPointers();
    case Step::kTakeOver:
      return TakeOver();
    case Step::kRemove:
      return Remove();
    case Step::kCommit:
      return Commit();
    case Step::kGiveUp:
      return GiveUp();
    case Step::kUnknown:
      return RecordUnknown();
  }
}

void CheckpointPublication::Next(Step step) {
  step_ = step;
  waits_for_.clear();
  Go();
}

void CheckpointPublication::Retry(Step step, const std::string& why) {
  step_ = step;
  waits_for_ = why;
  backoff_.Failed(tools_.clock->Now());
}

void CheckpointPublication::RetryOrLose(Step step, const absl::Status& error) {
  const std::string reason = ReasonOf(error);
  if (reason == ledger_reason::kUnavailable || reason == ledger_reason::kFull)
    return Retry(step, absl::StrCat("etcd (", error.message(), ")"));
  busy_ = true;  // No further step.
  const auto lost = lost_;
  lost(error);
}

SharedInflight CheckpointPublication::Inflight() const {
  return {save_.state.tag(), save_.sequence, save_.state.inflight()};
}

SharedRootIo::Publication CheckpointPublication::PublicationOf(
    const std::map<std::string, std::string>& digests) const {
  return {Inflight(),
          save_.state.attempt(),
          save_.state.ordinal(),
          {save_.state.ranks().begin(), save_.state.ranks().end()},
          {save_.state.earlier_time_us(), save_.state.time_us()},
          digests,
          save_.state.replaces(),
          {save_.state.inherited_pointers().begin(), save_.state.inherited_pointers().end()}};
}

// ---- 1 and 2: decide

// The decision removes the earlier checkpoint for good, so the parts are checked before it.

void CheckpointPublication::FindReplaced() {
  tools_.root->FindReplaced(PublicationOf(options_.digests), Then(&CheckpointPublication::OnReplaced));
}

void CheckpointPublication::OnReplaced(const absl::StatusOr<SharedRootIo::Replaced>& found) {
  if (!found.ok()) {
    unreadable_ = absl::StrCat("the root (", found.status().message(), ")");
    return Next(Step::kFindParts);
  }
  nowhere_since_.reset();
  replaces_ = *found;
  // An etcd that was restored from a backup may not know that this save was published.
  if (replaces_.sequence == save_.sequence) replaces_ = {};
  Next(Step::kDecide);
}

void CheckpointPublication::FindParts() {
  tools_.root->Find(Inflight(), Then(&CheckpointPublication::OnPartsFound));
}

// The parts of the save could not be read. An etcd that was restored from a backup may not know that the save
// has failed. Then its files are gone for good, and the steps from kDecide on record that.
void CheckpointPublication::OnPartsFound(const absl::StatusOr<SharedPlace>& place) {
  if (place.ok() && *place == SharedPlace::kNowhere) {
    if (IsNowhereAnyMore()) return Next(Step::kDecide);
  } else {
    nowhere_since_.reset();
  }
  Retry(Step::kFindReplaced, unreadable_);
}

// If the save is already PUBLISHING, its time, the checkpoint that it replaces, and its pointers stay.
void CheckpointPublication::Decide() {
  const int64_t time_us = std::max(tools_.clock->UnixMicros(), options_.later_than_us + 1);
  tools_.decisions->Publish(save_, options_.leadership, time_us, {replaces_.sequence, replaces_.pointers},
                            Then(&CheckpointPublication::OnDecided));
}

// Another checkpoint may have the tag after a wait, so the wait ends at kFindReplaced.
void CheckpointPublication::OnDecided(const absl::StatusOr<SavePublication::Publishing>& publishing) {
  if (!publishing.ok()) return RetryOrLose(step_, publishing.status());
  if (!publishing->waits_for.empty()) return Retry(Step::kFindReplaced, publishing->waits_for);
  save_ = publishing->save;
  if (save_.state.phase() != SaveState::PUBLISHING) return OnEnded(save_);
  publication_ = PublicationOf(publishing->digests);
  Next(Step::kLook);
}

// ---- 3: look

void CheckpointPublication::Look() { tools_.root->Find(Inflight(), Then(&CheckpointPublication::OnFound)); }

void CheckpointPublication::OnFound(const absl::StatusOr<SharedPlace>& place) {
  if (!place.ok()) return Retry(Step::kLook, absl::StrCat("the root (", place.status().message(), ")"));
  if (*place == SharedPlace::kNowhere) return OnNowhere();
  nowhere_since_.reset();
  if (*place == SharedPlace::kPublished) return Next(Step::kCommit);
  if (*place == SharedPlace::kInFlight) return Next(Step::kPublish);
  if (*place == SharedPlace::kSuperseded) {
    given_up_ = EndOf(MakeError(
        absl::StatusCode::kAborted, reason::kSuperseded,
        absl::StrCat("the save of ", save_.state.tag(), ", sequence ", save_.sequence,
                     ", is not in the root, and younger checkpoints are: etcd was restored from a backup")));
    return Next(Step::kGiveUp);
  }
  if (*place == SharedPlace::kLost) {
    given_up_ = EndOf(
        MakeError(absl::StatusCode::kAborted, reason::kRootChanged,
                  absl::StrCat("the directory .ckptd of the root was removed, and with it the files of ",
                               save_.state.tag(), "; save again")));
    return Next(Step::kGiveUp);
  }
  // In the trash: an earlier coordinator has moved the save there, and ended before it could record that.
  given_up_ = EndOf(MakeError(
      absl::StatusCode::kAlreadyExists, reason::kTagForeign,
      absl::StrCat("something that is no checkpoint of ckptd's had the place of ", save_.state.tag())));
  Next(Step::kGiveUp);
}

// A directory may seem to be missing for a moment after another node has moved it.
bool CheckpointPublication::IsNowhereAnyMore() {
  const Instant now = tools_.clock->Now();
  if (!nowhere_since_) nowhere_since_ = now;
  return now - *nowhere_since_ >= options_.longest_look;
}

void CheckpointPublication::OnNowhere() {
  if (IsNowhereAnyMore()) return Next(Step::kUnknown);
  Retry(Step::kLook, absl::StrCat("the directory ", save_.state.inflight(), " to appear in the root"));
}

// ---- 4: publish

void CheckpointPublication::Publish() {
  tools_.root->Publish(publication_, Then(&CheckpointPublication::OnPublished));
}

void CheckpointPublication::OnPublished(const absl::StatusOr<SharedRootIo::Published>& published) {
  if (!published.ok())
    return Retry(Step::kLook, absl::StrCat("the root (", published.status().message(), ")"));
  if (!published->given_up.ok()) {
    given_up_ = EndOf(published->given_up);
    return Next(Step::kGiveUp);
  }
  in_the_way_ = published->in_the_way;
  moved_in_ = published->moved_in;
  if (in_the_way_ == 0) return Next(Step::kCommit);
  // The decision names another checkpoint if it was made from a stale name.
  Next(in_the_way_ == save_.state.replaces() ? Step::kRemove : Step::kEvict);
}

void CheckpointPublication::Evict() {
  tools_.readers->Replace(in_the_way_, save_.sequence, options_.leadership,
                          Then(&CheckpointPublication::OnEvicting));
}

void CheckpointPublication::OnEvicting(const absl::Status& evicting) {
  if (evicting.ok()) return Next(Step::kFindPointers);
  if (ReasonOf(evicting) == reason::kBeingRead)
    return Retry(Step::kEvict, absl::StrCat("readers: ", evicting.message()));
  // The root gives the save up, once it has learnt of the pin.
  if (ReasonOf(evicting) == reason::kPinned)
    return Retry(Step::kLook, absl::StrCat("the root to learn that ", evicting.message()));
  RetryOrLose(Step::kEvict, evicting);
}

void CheckpointPublication::FindPointers() {
  tools_.root->FindReplaced(publication_, Then(&CheckpointPublication::OnPointersFound));
}

void CheckpointPublication::OnPointersFound(const absl::StatusOr<SharedRootIo::Replaced>& found) {
  if (!found.ok()) return Retry(Step::kLook, absl::StrCat("the root (", found.status().message(), ")"));
  if (found->sequence != in_the_way_)
    return Retry(Step::kLook, absl::StrCat("the directory of ", save_.state.tag(), ", which changes"));
  replaces_ = *found;
  Next(Step::kTakeOver);
}

void CheckpointPublication::TakeOver() {
  tools_.decisions->ReplaceAnother(save_, options_.leadership, {replaces_.sequence, replaces_.pointers},
                                   Then(&CheckpointPublication::OnTakenOver));
}

// The next Publish writes these pointers to the manifest before the checkpoint that has them is removed.
void CheckpointPublication::OnTakenOver(const absl::StatusOr<SharedSave>& save) {
  if (!save.ok()) return RetryOrLose(Step::kTakeOver, save.status());
  save_ = *save;
  if (save_.state.phase() != SaveState::PUBLISHING) return OnEnded(save_);
  publication_ = PublicationOf(publication_.digests);
  Next(Step::kPublish);
}

void CheckpointPublication::Remove() {
  tools_.root->Remove(save_.state.tag(), in_the_way_, /*inode=*/0, Then(&CheckpointPublication::OnRemoved));
}

void CheckpointPublication::OnRemoved(const absl::StatusOr<bool>& gone) {
  if (!gone.ok()) return Retry(Step::kRemove, absl::StrCat("the root (", gone.status().message(), ")"));
  Next(*gone ? Step::kPublish : Step::kRemove);
}

// ---- 5: record the outcome

void CheckpointPublication::Commit() {
  tools_.decisions->Committed(save_, options_.leadership, moved_in_, Then(&CheckpointPublication::OnEnded));
}

void CheckpointPublication::GiveUp() {
  tools_.decisions->NotPublished(save_, options_.leadership, given_up_,
                                 Then(&CheckpointPublication::OnEnded));
}

void CheckpointPublication::RecordUnknown() {
  tools_.decisions->Unknown(save_, options_.leadership, Then(&CheckpointPublication::OnEnded));
}

void CheckpointPublication::OnEnded(const absl::StatusOr<SharedSave>& save) {
  if (!save.ok()) return RetryOrLose(step_, save.status());
  busy_ = true;  // No further step.
  const auto ended = ended_;
  ended(*save);
}

}  // namespace ckptd
