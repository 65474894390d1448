#include "daemon/engine/save/publisher.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/engine/run/part_layout.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"
#include "storage/format/manifest.h"
#include "storage/format/retention_record.h"
#include "storage/ledger/ledger.h"

namespace ckptd {
namespace {

// For how long the sealed parts of a save wait for the ranks that still copy.
constexpr Duration kLongestWriteHold = std::chrono::seconds(1);

// The space of the manifest, which is taken before the data is written.
int64_t ManifestBytes(const Save& save, int64_t expected_bytes, int32_t chunk_bytes) {
  const int64_t files = static_cast<int64_t>(save.claims.size());
  return kManifestHeadBytes + (64 << 10) + expected_bytes / chunk_bytes * 4 + save.claims.path_bytes() +
         40 * files;
}

// The root takes no changes until its next scan. Nothing was changed, so the same call may be made after it.
bool IsReadOnly(const absl::Status& status) { return ReasonOf(status) == reason::kRootReadOnly; }

// The pause between two tries of a publish: 1 s, 2 s, ... 32 s, 32 s.
Duration Backoff(int tries) { return std::chrono::seconds(1) * (1 << std::clamp(tries - 1, 0, 5)); }

absl::Status WritingFailed(const Save& save, int rank, const absl::Status& why) {
  ErrorDetails details = DetailsOf(why);
  details["tag"] = save.key.tag;
  details["ranks"] = absl::StrCat(rank);
  return MakeError(why.code(), ReasonOf(why),
                   absl::StrCat("writing the part of rank ", rank, " of ", save.key.tag, " in the root ",
                                save.run->path, ": ", std::string(why.message())),
                   details);
}

CommittedCheckpoint Committed(const Save& save, int32_t chunk_bytes, int64_t now_unix_us) {
  CommittedCheckpoint committed;
  committed.summary = SummaryOf(save, chunk_bytes);
  committed.summary.set_commit_time_us(now_unix_us);
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

storage::v1::ManifestSummary SummaryOf(const Save& save, int32_t chunk_bytes) {
  storage::v1::ManifestSummary summary;
  summary.set_format_version(1);
  summary.set_run_id(save.run->ledger->record().run_id());
  summary.set_tag(save.key.tag);
  if (save.step) summary.set_step(*save.step);
  summary.set_sequence(save.sequence);
  summary.set_attempt(save.key.attempt);
  summary.set_ordinal(save.key.ordinal);
  summary.set_world_size(save.world_size);
  summary.set_create_time_us(save.begun_unix_us);
  summary.set_chunk_bytes(chunk_bytes);
  summary.mutable_metrics()->insert(save.metrics.begin(), save.metrics.end());
  summary.set_suspect(save.suspect);
  // A suspect checkpoint is not the one that other programs are to find.
  if (save.suspect.empty()) summary.mutable_pointers()->insert(save.pointers.begin(), save.pointers.end());
  return summary;
}

Publisher::Publisher(Clock* clock, EngineObserver* observer, const SaveTable* saves,
                     const ExpectedSizes* sizes, RootScanner* scanner, int32_t chunk_bytes, Hooks hooks)
    : clock_(clock),
      observer_(observer),
      saves_(saves),
      sizes_(sizes),
      scanner_(scanner),
      chunk_bytes_(chunk_bytes),
      hooks_(std::move(hooks)) {}

// ---- parts

void Publisher::Start(Save* save) {
  save->inflight_asked = true;
  const int64_t manifest_bytes = ManifestBytes(*save, sizes_->TotalBytes(*save), chunk_bytes_);
  save->run->authority->OpenPart(save->id, save->key.tag, save->sequence, save->node.inflight, manifest_bytes,
                                 [this, id = save->id](absl::Status made) { OnStarted(id, made); });
}

void Publisher::OnStarted(int64_t save_id, const absl::Status& made) {
  Save* save = saves_->Find(save_id);
  if (save == nullptr) return;
  // A part of a shared run is discarded also where it could not be opened.
  const bool is_shared = save->run->shared != nullptr;
  save->inflight_made = made.ok() || is_shared;
  if (!save->inflight_made) save->inflight_asked = false;
  if (save->phase() == SavePhase::kFailing) return hooks_.continue_failing(save);
  if (IsReadOnly(made) && !is_shared) return scanner_->AwaitScan(save->run);
  if (!made.ok())
    return hooks_.fail(save, Annotate(made, absl::StrCat("opening the directory of the save of ",
                                                         save->key.tag, " in the root ", save->run->path)));
  WriteSealedParts(save);
}

// While a rank copies, its training stands still. Writing the parts of the others would take memory bandwidth
// and processor time from that copy, and a checkpoint needs all parts anyway.
bool Publisher::HoldsWrites(Save* save) const {
  const bool none_is_sealed = save->slowest_rank < 0;
  if (none_is_sealed || save->UnsealedRanks().empty()) return false;
  const Instant now = clock_->Now();
  if (!save->writes_held_until) save->writes_held_until = now + kLongestWriteHold;
  return now < *save->writes_held_until;
}

void Publisher::WriteSealedParts(Save* save) {
  if (HoldsWrites(save) || !save->inflight_made || save->phase() != SavePhase::kAdmitted) return;
  for (auto& [rank, part] : save->parts) {
    if (part.sealed && !part.writing && !part.durable) WritePart(save, part);
  }
}

void Publisher::WritePart(Save* save, Part& part) {
  storage::v1::PartRecord record;
  record.set_format_version(1);
  record.set_rank(part.rank);
  record.set_sequence(save->sequence);
  record.set_chunk_bytes(chunk_bytes_);
  *record.mutable_checkpoint() = SummaryOf(*save, chunk_bytes_);
  part.writing = true;
  save->run->io->WritePart(
      save->id, std::move(record), ImagesOf(part.files, part.placed, part.segments), save->written,
      [this, id = save->id, rank = part.rank](absl::StatusOr<storage::v1::PartRecord> written) {
        OnPartWritten(id, rank, std::move(written));
      });
}

void Publisher::OnPartWritten(int64_t save_id, int rank, absl::StatusOr<storage::v1::PartRecord> record) {
  Save* save = saves_->Find(save_id);
  if (save == nullptr) return;
  Part& part = save->parts.at(rank);
  part.writing = false;
  if (record.ok()) {
    part.durable = true;
    part.record = *std::move(record);
    save->written_at = clock_->Now();
  }
  if (save->phase() == SavePhase::kFailing) return hooks_.continue_failing(save);
  if (!record.ok()) return hooks_.fail(save, WritingFailed(*save, rank, record.status()));
  TryPublish(save);
}

// ---- publish

bool Publisher::IsReady(const Save& save) const {
  if (save.phase() != SavePhase::kAdmitted || save.level() != v1::SEALED) return false;
  // OnScanned or OnTick tries it again.
  if (save.run->read_only || save.run->scanning || save.publish_again_at) return false;
  for (const auto& [rank, part] : save.parts) {
    if (!part.durable) return false;
  }
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
    if (save->phase() == SavePhase::kPublishing && save.get() != except)
      policies.push_back(PolicyAfterCommit(run.ledger->record(), save->retention));
  }
  return policies;
}

// If this daemon is killed after the commit, the next one goes by the run record, and its retention removes
// what the record does not keep. So a policy that may keep more than the one in force is recorded before the
// commit; one that keeps less, after it.
void Publisher::TryPublish(Save* save) {
  if (save->run->shared != nullptr) return hooks_.shared_part_written(save);
  if (!IsReady(*save)) return;
  save->life.Written();
  const storage::v1::RunRecord& record = save->run->ledger->record();
  const RetentionPolicy next = PolicyAfterCommit(record, save->retention);
  const RetentionPolicy in_force = LoadRetention(record);
  if (KeepsNoMoreThan(next, in_force)) return Publish(save);
  save->run->ledger->SetRetention(in_force, NextPolicies(*save->run, nullptr));
  save->run->ledger->WriteHistory([this, id = save->id](const absl::Status& written) {
    Save* ready = saves_->Find(id);
    if (ready == nullptr) return;
    if (written.ok()) return Publish(ready);
    ready->life.NotPublished();
    hooks_.fail(ready, Annotate(written, "recording which checkpoints are kept"));
  });
}

void Publisher::Publish(Save* save) {
  save->run->ledger->Commit(save->sequence, [this, id = save->id](absl::Status decided) {
    Save* ready = saves_->Find(id);
    if (ready == nullptr) return;
    if (!decided.ok()) {
      ready->life.NotPublished();
      return hooks_.fail(ready, decided);
    }
    std::vector<storage::v1::PartRecord> parts;
    for (const auto& [rank, part] : ready->parts) parts.push_back(part.record);
    ready->run->io->Publish(id, SummaryOf(*ready, chunk_bytes_), std::move(parts),
                            [this, id](PublishResult result) { OnPublished(id, std::move(result)); });
  });
}

void Publisher::OnPublished(int64_t save_id, PublishResult result) {
  Save* save = saves_->Find(save_id);
  if (save == nullptr) return;
  if (result.outcome == PublishOutcome::kFailed) {
    save->life.NotPublished();
    return result.retryable ? TryLater(save, result.status) : hooks_.fail(save, result.status);
  }
  if (result.outcome == PublishOutcome::kIndeterminate) return SetIndeterminate(save, result.status);
  Run* run = save->run;
  run->ledger->SetRetention(PolicyAfterCommit(run->ledger->record(), save->retention),
                            NextPolicies(*run, save));
  run->ledger->RaiseSequence(result.highest_new_sequence);
  const int64_t retained = run->ledger->record().retained_through();
  run->ledger->Committed(save->key.attempt);
  if (const int64_t now = run->ledger->record().retained_through(); now != retained) {
    observer_->OnWarning(SetAsideWarning(run->path, now));
  }
  hooks_.committed(save, Committed(*save, chunk_bytes_, clock_->UnixMicros()), std::move(result.pointers));
  // A checkpoint was moved into the root: it is listed, and ordered before the next save, from the
  // scan on.
  if (result.root_has_new_checkpoints) scanner_->Scan(run);
}

void Publisher::SetIndeterminate(Save* save, const absl::Status& why) {
  Run* run = save->run;
  save->error = MakeError(
      absl::StatusCode::kUnknown, reason::kIndeterminate,
      absl::StrCat("whether ", save->key.tag, " survives a crash is not known: ", std::string(why.message()),
                   "; the root is read-only until it has been scanned anew"),
      {{"tag", save->key.tag}});
  run->read_only = true;
  save->inflight_made = false;
  hooks_.indeterminate(save);
  scanner_->ScanAloud(run);
}

// The save is complete on disk, and the publish has changed nothing. It is tried again after the scan of a
// read-only root, else after a pause.
void Publisher::TryLater(Save* save, const absl::Status& why) {
  if (IsReadOnly(why)) return scanner_->AwaitScan(save->run);
  if (++save->publish_tries == 1) {
    observer_->OnWarning(absl::StrCat(
        "the save of ", save->run->path, "/", save->key.tag,
        " is complete and could not be published yet, which is tried again: ", std::string(why.message())));
  }
  save->publish_again_at = clock_->Now() + Backoff(save->publish_tries);
}

// ---- events

void Publisher::OnSaveEnded(const Save& save) {
  for (const auto& [sequence, other] : save.run->saves) {
    if (other->key.tag == save.key.tag) return TryPublish(other.get());
  }
}

void Publisher::OnScanned(Run* run) {
  std::vector<int64_t> ids;
  for (const auto& [sequence, save] : run->saves) ids.push_back(save->id);
  for (int64_t id : ids) {
    Save* save = saves_->Find(id);
    if (save == nullptr) continue;
    if (save->phase() == SavePhase::kFailing) {
      if (save->inflight_made) hooks_.continue_failing(save);
    } else if (save->phase() == SavePhase::kAdmitted) {
      if (!save->inflight_asked) Start(save);
      TryPublish(save);
    }
  }
}

void Publisher::OnTick(Run* run, Instant now) {
  for (const auto& [sequence, save] : run->saves) {
    if (save->writes_held_until && now >= *save->writes_held_until) WriteSealedParts(save.get());
    if (!save->publish_again_at || now < *save->publish_again_at) continue;
    save->publish_again_at.reset();
    TryPublish(save.get());
  }
}

}  // namespace ckptd
