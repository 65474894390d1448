#include "daemon/engine/save/publisher.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/engine/save/member_files.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"
#include "storage/format/retention_record.h"
#include "storage/ledger/ledger.h"

namespace ckptd {

using Decision = Authority::Decision;

namespace {

// The pause between two tries of a publish: 1 s, 2 s, ... 32 s, 32 s.
Duration Backoff(int tries) { return std::chrono::seconds(1) * (1 << std::clamp(tries - 1, 0, 5)); }

CommittedCheckpoint Committed(const Save& save, int32_t chunk_bytes, int64_t commit_time_us) {
  CommittedCheckpoint committed;
  committed.summary = SummaryOf(save, chunk_bytes);
  committed.summary.set_commit_time_us(commit_time_us);
  int64_t bytes = 0;
  int files = 0;
  for (const auto& [rank, part] : save.parts) {
    for (const storage::v1::FileRecord& file : part.record.files()) {
      bytes += file.size_bytes();
      ++files;
    }
  }
  committed.summary.set_size_bytes(bytes);
  committed.summary.set_file_count(files);
  return committed;
}

}  // namespace

Publisher::Publisher(Clock* clock, EngineObserver* observer, const SaveTable* saves, RootScanner* scanner,
                     int32_t chunk_bytes)
    : clock_(clock), observer_(observer), saves_(saves), scanner_(scanner), chunk_bytes_(chunk_bytes) {}

void Publisher::Publish(Run* run, const SaveId& id, LocalAuthority::Decided decided) {
  const Save* const save = run->FindSave(id);
  publications_[save->id].decided = std::move(decided);
  TryPublish(save->id);
}

// Publications that wait are tried again by OnScanned, OnSaveEnded and OnTick.
bool Publisher::IsReady(const Save& save, const Publication& publication) const {
  if (save.phase() != SavePhase::kWritten || publication.under_way || publication.again_at) return false;
  if (save.run->read_only || save.run->scanning) return false;
  for (const auto& [sequence, other] : save.run->saves) {
    // An older generation of the tag is published first, or not at all.
    if (sequence < save.sequence && other->key.tag == save.key.tag) return false;
  }
  return true;
}

// The policies that the saves of the run that are being published put in force, `except` one of them.
std::vector<RetentionPolicy> Publisher::NextPolicies(const Run& run, const Save* except) const {
  std::vector<RetentionPolicy> policies;
  for (const auto& [sequence, save] : run.saves) {
    const auto found = publications_.find(save->id);
    if (found == publications_.end() || !found->second.under_way || save.get() == except) continue;
    if (save->phase() <= SavePhase::kPublishing)
      policies.push_back(PolicyAfterCommit(run.ledger->record(), save->retention));
  }
  return policies;
}

// If this daemon is killed after the commit, the next one goes by the run record, and its retention removes
// what the record does not keep. So a policy that may keep more than the one in force is recorded before the
// commit; one that keeps less, after it.
void Publisher::TryPublish(int64_t save_id) {
  const auto found = publications_.find(save_id);
  if (found == publications_.end()) return;
  const Save* const save = saves_->Find(save_id);
  if (save == nullptr || !IsReady(*save, found->second)) return;
  found->second.under_way = true;
  const storage::v1::RunRecord& record = save->run->ledger->record();
  const RetentionPolicy next = PolicyAfterCommit(record, save->retention);
  const RetentionPolicy in_force = LoadRetention(record);
  if (KeepsNoMoreThan(next, in_force)) return Begin(save_id);
  save->run->ledger->SetRetention(in_force, NextPolicies(*save->run, nullptr));
  save->run->ledger->WriteHistory([this, save_id](const absl::Status& written) {
    if (written.ok()) return Begin(save_id);
    Decide(save_id,
           {.phase = Decision::kEnded, .end = Annotate(written, "recording which checkpoints are kept")});
  });
}

// Unless the save was ended while its policy was recorded.
void Publisher::Begin(int64_t save_id) {
  Save* const save = saves_->Find(save_id);
  if (save == nullptr || save->phase() != SavePhase::kWritten) return;
  Decide(save_id, {.phase = Decision::kPublishing});
  std::vector<storage::v1::PartRecord> parts;
  for (const auto& [rank, part] : save->parts) parts.push_back(part.record);
  storage::v1::ManifestSummary summary = SummaryOf(*save, chunk_bytes_);
  summary.set_commit_time_us(clock_->UnixMicros());
  publications_.at(save_id).commit_time_us = summary.commit_time_us();
  save->run->local_io->Publish(
      save_id, std::move(summary), std::move(parts),
      [this, save_id](PublishResult result) { OnPublished(save_id, std::move(result)); });
}

void Publisher::Decide(int64_t save_id, const Decision& decision, LoadedCheckpoint published) {
  const auto found = publications_.find(save_id);
  if (found == publications_.end()) return;
  const LocalAuthority::Decided decided = found->second.decided;  // The end of the save removes it.
  decided(decision, std::move(published));
}

void Publisher::OnPublished(int64_t save_id, PublishResult result) {
  Save* const save = saves_->Find(save_id);
  if (save == nullptr) return;
  if (result.outcome == PublishOutcome::kFailed && result.retryable) return TryLater(save, result.status);
  if (result.outcome == PublishOutcome::kFailed)
    return Decide(save_id, {.phase = Decision::kEnded, .end = result.status});
  if (result.outcome == PublishOutcome::kIndeterminate)
    return Decide(save_id, {.phase = Decision::kUnknown, .end = result.status});
  Run* run = save->run;
  run->ledger->SetRetention(PolicyAfterCommit(run->ledger->record(), save->retention),
                            NextPolicies(*run, save));
  run->ledger->RaiseSequence(result.highest_new_sequence);
  const int64_t retained = run->ledger->record().retained_through();
  run->ledger->Committed(save->key.attempt);
  if (const int64_t now = run->ledger->record().retained_through(); now != retained) {
    observer_->OnWarning(SetAsideWarning(run->path, now));
  }
  Decide(
      save_id, {.phase = Decision::kCommitted},
      {Committed(*save, chunk_bytes_, publications_.at(save_id).commit_time_us), std::move(result.pointers)});
  // A checkpoint was moved into the root: it is listed, and ordered before the next save, from the
  // scan on.
  if (result.root_has_new_checkpoints) scanner_->Scan(run);
}

// The save is complete on disk, and the publish has changed nothing. It is tried again after the scan of a
// read-only root, else after a pause.
void Publisher::TryLater(Save* save, const absl::Status& why) {
  Run* const run = save->run;
  Publication& publication = publications_.at(save->id);
  publication.under_way = false;
  const bool after_scan = ReasonOf(why) == reason::kRootReadOnly;
  if (!after_scan) {
    if (++publication.tries == 1) {
      observer_->OnWarning(absl::StrCat(
          "the save of ", run->path, "/", save->key.tag,
          " is complete and could not be published yet, which is tried again: ", std::string(why.message())));
    }
    publication.again_at = clock_->Now() + Backoff(publication.tries);
  }
  Decide(save->id, {.phase = Decision::kSealed});  // It may end the save.
  if (after_scan) scanner_->AwaitScan(run);
}

// ---- events

void Publisher::OnSaveEnded(const Save& save) {
  publications_.erase(save.id);
  for (const auto& [sequence, other] : save.run->saves) {
    if (other->key.tag == save.key.tag) return TryPublish(other->id);
  }
}

void Publisher::OnScanned(Run* run) {
  std::vector<int64_t> ids;
  for (const auto& [sequence, save] : run->saves) ids.push_back(save->id);
  for (int64_t id : ids) TryPublish(id);
}

void Publisher::OnTick(Instant now) {
  std::vector<int64_t> due;
  for (auto& [id, publication] : publications_) {
    if (!publication.again_at || now < *publication.again_at) continue;
    publication.again_at.reset();
    due.push_back(id);
  }
  for (int64_t id : due) TryPublish(id);
}

}  // namespace ckptd
