// What several classes of the engine do when one has told an event, in this order.
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/engine/engine_impl.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"
#include "storage/format/retention_record.h"

namespace ckptd {

// ---- roots

void Engine::Impl::OnRootOpening(Run* run) { disk_.SetWrittenBefore(run, disk_.WrittenBytes(run->device)); }

void Engine::Impl::OnRootOpened(Run* run) {
  observer_->OnRootOpened(run->name, run->path, run->probe);
  driver_.Start(run);
  recovery_.OnRootOpened(run);
}

// The daemon before this one may have been killed between a commit and its evictions.
void Engine::Impl::OnRootAccepted(Run* run) {
  trash_.Empty(run);
  retention_.Apply(run);
}

void Engine::Impl::ScanBeforeChanges(Run* run) {
  run->read_only = true;
  scanner_.Scan(run);
}

void Engine::Impl::LoadScan(Run* run, RootSnapshot snapshot, int64_t written_bytes) {
  LoadSnapshot(run, std::move(snapshot));
  disk_.SetWrittenBefore(run, written_bytes);
}

void Engine::Impl::OnScanned(Run* run) {
  files_.OnScanned(run);
  publisher_.OnScanned(run);
  resumes_.OnScanned(run);
  shared_fetches_.OnScanned(run);
  trash_.Empty(run);
  retention_.OnScanned(run);
  queue_.TryAdmitAll();
}

void Engine::Impl::OnRootChanged(Run* run) {
  retention_.ApplyAfterScan(run);
  scanner_.Scan(run);
}

void Engine::Impl::OnJoined(Run* run, int64_t attempt, const v1::JoinRunRequest& request) {
  resumes_.OnJoined(run, attempt, request.rank());
  fetches_.OnJoined(run, attempt, request);
  uploads_.OnJoined(run, attempt, request);
  ReportOrphans(run, attempt, request);
}

// ---- room

bool Engine::Impl::MayFreeRoom(const Run& run) const {
  if (!retention_.HeldForUploadAlone(run).empty()) return true;
  return retention_.HasEvictions(run) || trash_.MayFreeRoom(run) || history_.MayFreeRoom(run);
}

// Nothing else frees room any more.
void Engine::Impl::GiveUpUploads(Run* run) {
  if (retention_.HasEvictions(*run) || trash_.MayFreeRoom(*run) || history_.MayFreeRoom(*run)) return;
  uploads_.GiveUp(run, retention_.HeldForUploadAlone(*run));
}

void Engine::Impl::OnTrashEmptied(Run* run, bool for_room) {
  CheckDrained();
  disk_.AskAfterChange(run, /*for_next=*/!for_room && trash_.HasInGrace(*run));
}

void Engine::Impl::OnHistoryFailed(Run* run, bool retention_waits) {
  retention_.OnHistoryFailed(run);
  CheckDrained();
  if (retention_waits) return queue_.TryAdmitAll();
  disk_.MakeRoom(run, 1);  // The disk is full.
}

// ---- saves

void Engine::Impl::OnAdmitted(Save* save) {
  files_.Open(save);
  grants_.OnAdmitted(save);
}

void Engine::Impl::OnAllSealed(Save* save) {
  sizes_.Remember(*save);
  if (save->run->authority->next_daemon_continues()) recovery_.Keep(save);
}

void Engine::Impl::OnRecovered(Save* save) {
  files_.Open(save);
  Notify(*save);
}

void Engine::Impl::OnCommitted(Save* save, CommittedCheckpoint committed, PointerFiles pointers) {
  Run* run = save->run;
  run->catalog.RemoveTag(save->key.tag);
  uploads_.OnCommitted(run, run->catalog.Add(std::move(committed)).summary);
  retention_.SetPolicies(run, {LoadRetention(run->ledger->record())});
  retention_.SetPointers(run, std::move(pointers));
  tracker_.End(save, v1::COMMITTED);  // Retention follows when the history is on disk.
}

void Engine::Impl::OnCommittedUnread(Save* save) {
  Run* run = save->run;
  tracker_.End(save, v1::COMMITTED);
  OnRootChanged(run);
}

void Engine::Impl::OnUnknown(Save* save, const absl::Status& why) {
  Run* run = save->run;
  save->error = MakeError(
      absl::StatusCode::kUnknown, reason::kIndeterminate,
      absl::StrCat("whether ", save->key.tag, " survives a crash is not known: ", std::string(why.message()),
                   "; the root is read-only until it has been scanned anew"),
      {{"tag", save->key.tag}});
  run->read_only = true;
  tracker_.End(save, v1::INDETERMINATE);
  scanner_.ScanAndLog(run);
}

void Engine::Impl::OnReleasingMemory(Save* save) {
  recovery_.Drop(save);
  const bool committed = save->level() == v1::COMMITTED;
  if (save->reservation != 0 && committed && residents_.Keep(*save)) save->reservation = 0;
}

void Engine::Impl::OnMemoryReleased(const Save& save) {
  residents_.Prune(save.run);
  placer_.Forget(save);
  disk_.OnSaveEnded(save);
}

void Engine::Impl::OnSaveEnded(Save* save) {
  publisher_.OnSaveEnded(*save);
  resumes_.Continue(save->run);
  queue_.TryAdmitAll();
  CheckDrained();
}

// ---- checkpoints

void Engine::Impl::OnUploadChanged(const Run& run, int64_t sequence) {
  const CommittedCheckpoint* committed = run.catalog.Find(sequence);
  if (committed == nullptr) return;
  v1::WatchResponse event;
  *event.mutable_checkpoint() = Describe(run, *committed);
  watches_.Notify(run, std::move(event));
}

void Engine::Impl::OnBucketListed(Run* run, int64_t attempt, const v1::UploadPolicy& policy,
                                  const UploadIo::Contents& contents) {
  uploads_.TakeOver(run, attempt, policy, contents.checkpoints);
}

void Engine::Impl::OnBucketFetched(Run* run, const absl::Status& status, bool is_new) {
  if (run->authority->uploads() != nullptr) return shared_fetches_.OnFetched(run, status, is_new);
  resumes_.OnFetched(run, status, is_new);
}

std::string Engine::Impl::DescribeFetch(const Run& run) const {
  return fetches_.IsActive(run) ? fetches_.Describe(run) : shared_fetches_.Describe(run);
}

void Engine::Impl::OnRemovedByOthers(Run* run, int64_t sequence) {
  run->catalog.Withdraw(sequence);
  residents_.Prune(run);
}

void Engine::Impl::OnPinChanged(Run* run, const std::string&, int64_t sequence, bool pinned) {
  run->catalog.SetPinned(sequence, pinned);
  if (!pinned) retention_.Apply(run);
}

void Engine::Impl::OnLeaseReleased(const Lease& lease) {
  restores_.OnReleased(lease);
  residents_.OnLeaseReleased(lease);
  retention_.Apply(lease.run);  // It may have been all that kept a victim.
}

}  // namespace ckptd
