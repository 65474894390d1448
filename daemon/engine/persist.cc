// From sealed to committed: parts to disk, publish, retention. The steps on disk are RootStore's.
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/engine/engine_impl.h"
#include "daemon/engine/part_layout.h"
#include "storage/base/errors.h"

namespace ckptd {
namespace {

// A scan or a deletion that failed is tried again.
constexpr Duration kTryAgain = std::chrono::seconds(1);

// The manifest's space, taken before the data is written.
int64_t ManifestBytes(const Save& save, int64_t expected_bytes, int32_t chunk_bytes) {
  int64_t bytes = kManifestHeadBytes + (64 << 10) + expected_bytes / chunk_bytes * 4;
  for (const auto& owner : save.owner_of_path) bytes += static_cast<int64_t>(owner.first.size()) + 40;
  return bytes;
}

// The root takes no changes until its next scan. Nothing was changed, so the same call may be made after it.
bool IsReadOnly(const absl::Status& status) { return ReasonOf(status) == "ROOT_READ_ONLY"; }

// Between two tries of a publish that could not read what it must know: 1 s, 2 s, ... 32 s, 32 s.
Duration PublishBackoff(int tries) { return kTryAgain * (1 << std::clamp(tries - 1, 0, 5)); }

}  // namespace

void Engine::Impl::StartInflight(Save* save) {
  const int64_t expected = sizes_.TotalBytes(*save);
  save->inflight_asked = true;
  save->run->io->CreateInflight(save->id, save->key.tag, save->sequence,
                                ManifestBytes(*save, expected, options_.chunk_bytes),
                                [this, id = save->id](absl::Status made) {
                                  Save* begun = saves_.Find(id);
                                  if (begun == nullptr) return;
                                  begun->inflight_made = made.ok();
                                  if (!made.ok()) begun->inflight_asked = false;
                                  if (begun->phase == SavePhase::kFailing) return ContinueFailing(begun);
                                  if (IsReadOnly(made)) return scanner_.AwaitScan(begun->run);
                                  if (!made.ok()) return FailSave(begun, made);
                                  WriteSealedParts(begun);
                                });
}

void Engine::Impl::WriteSealedParts(Save* save) {
  if (!save->inflight_made || save->phase != SavePhase::kAdmitted) return;
  for (auto& entry : save->parts) {
    Part& part = entry.second;
    if (part.sealed && !part.writing && !part.durable) WritePart(save, part);
  }
}

storage::v1::ManifestSummary Engine::Impl::SummaryOf(const Save& save) const {
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
  summary.set_chunk_bytes(options_.chunk_bytes);
  for (const auto& metric : save.metrics) (*summary.mutable_metrics())[metric.first] = metric.second;
  summary.mutable_pointers()->insert(save.pointers.begin(), save.pointers.end());
  return summary;
}

void Engine::Impl::WritePart(Save* save, Part& part) {
  storage::v1::PartRecord record;
  record.set_format_version(1);
  record.set_rank(part.rank);
  record.set_sequence(save->sequence);
  record.set_chunk_bytes(options_.chunk_bytes);
  *record.mutable_checkpoint() = SummaryOf(*save);
  part.writing = true;
  save->run->io->WritePart(
      save->id, std::move(record), ImagesOf(part.files, part.placed, part.segments), save->written,
      [this, id = save->id, rank = part.rank](absl::StatusOr<storage::v1::PartRecord> written) {
        PartWritten(id, rank, std::move(written));
      });
}

void Engine::Impl::PartWritten(int64_t save_id, int rank, absl::StatusOr<storage::v1::PartRecord> record) {
  Save* save = saves_.Find(save_id);
  if (save == nullptr) return;
  Part& part = save->parts.at(rank);
  part.writing = false;
  if (record.ok()) {
    part.durable = true;
    part.record = *std::move(record);
    save->written_at = clock_->Now();
  }
  if (save->phase == SavePhase::kFailing) return ContinueFailing(save);
  if (!record.ok()) {
    ErrorDetails details = DetailsOf(record.status());
    details["tag"] = save->key.tag;
    details["ranks"] = absl::StrCat(rank);
    return FailSave(save, MakeError(record.status().code(), ReasonOf(record.status()),
                                    absl::StrCat("writing the part of rank ", rank, ": ",
                                                 std::string(record.status().message())),
                                    details));
  }
  TryPublish(save);
}

void Engine::Impl::TryPublish(Save* save) {
  if (save->phase != SavePhase::kAdmitted || save->level != v1::SEALED) return;
  if (save->run->read_only || save->run->scanning || save->publish_again_at) return;  // Tried again then.
  for (const auto& entry : save->parts) {
    if (!entry.second.durable) return;
  }
  for (const auto& entry : save->run->saves) {  // An older generation of the tag goes first, or not at all.
    if (entry.second.get() != save && entry.second->key.tag == save->key.tag && entry.first < save->sequence)
      return;
  }
  save->phase = SavePhase::kPublishing;
  // A daemon that is killed after the commit leaves the run record to the next one, whose retention removes
  // what the record does not keep. So the record says that more are kept before the commit, and that fewer
  // are kept after it.
  const storage::v1::RunRecord& record = save->run->ledger->record();
  const int all = std::numeric_limits<int>::max();
  const int recorded = record.has_num_kept_ckpts() ? record.num_kept_ckpts() : all;
  if (save->num_kept_ckpts.value_or(all) <= recorded) return Publish(save);
  save->run->ledger->SetRetention(save->num_kept_ckpts);
  save->run->ledger->WriteHistory([this, id = save->id](const absl::Status& written) {
    Save* ready = saves_.Find(id);
    if (ready == nullptr) return;
    if (written.ok()) return Publish(ready);
    ready->phase = SavePhase::kAdmitted;
    FailSave(ready, Annotate(written, "recording that more checkpoints are kept"));
  });
}

void Engine::Impl::Publish(Save* save) {
  save->run->ledger->Commit(save->sequence, [this, id = save->id](absl::Status decided) {
    Save* ready = saves_.Find(id);
    if (ready == nullptr) return;
    if (!decided.ok()) {
      ready->phase = SavePhase::kAdmitted;
      return FailSave(ready, decided);
    }
    std::vector<storage::v1::PartRecord> parts;
    for (const auto& entry : ready->parts) parts.push_back(entry.second.record);
    ready->run->io->Publish(id, SummaryOf(*ready), std::move(parts),
                            [this, id](PublishResult result) { Published(id, std::move(result)); });
  });
}

void Engine::Impl::Published(int64_t save_id, PublishResult result) {
  Save* save = saves_.Find(save_id);
  if (save == nullptr) return;
  Run* run = save->run;
  if (result.outcome == PublishOutcome::kFailed) {
    save->phase = SavePhase::kAdmitted;
    return result.retryable ? HoldPublish(save, result.status) : FailSave(save, result.status);
  }
  if (result.outcome == PublishOutcome::kIndeterminate) {
    save->error =
        MakeError(absl::StatusCode::kUnknown, "INDETERMINATE",
                  absl::StrCat("whether ", save->key.tag,
                               " survives a crash is not known: ", std::string(result.status.message()),
                               "; the root is read-only until it has been scanned anew"),
                  {{"tag", save->key.tag}});
    run->read_only = true;
    save->inflight_made = false;
    EndSave(save, v1::INDETERMINATE);
    return scanner_.Scan(run);
  }
  CommittedCheckpoint committed;
  committed.summary = SummaryOf(*save);
  committed.summary.set_commit_time_us(clock_->UnixMicros());
  int64_t bytes = 0;
  int files = 0;
  for (const auto& entry : save->parts) {
    for (const storage::v1::FileRecord& file : entry.second.record.files()) {
      bytes += file.size_bytes();
      ++files;
    }
  }
  committed.summary.set_size_bytes(bytes);
  committed.summary.set_file_count(files);
  std::erase_if(run->committed,
                [save](const auto& entry) { return entry.second.summary.tag() == save->key.tag; });
  run->committed.emplace(save->sequence, std::move(committed));
  retention_.SetNumKept(run, save->num_kept_ckpts);
  run->ledger->SetRetention(save->num_kept_ckpts);
  retention_.SetPointers(run, std::move(result.pointers));
  EndSave(save, v1::COMMITTED);  // And Retain, when the history has it.
}

// The save is durable and complete, and its publish has changed nothing: it is tried again after the scan, or
// after a while when something could not be read.
void Engine::Impl::HoldPublish(Save* save, const absl::Status& why) {
  if (IsReadOnly(why)) return scanner_.AwaitScan(save->run);
  if (++save->publish_tries == 1) {
    observer_->OnWarning(absl::StrCat(
        "the save of ", save->run->path, "/", save->key.tag,
        " is complete and could not be published yet, which is tried again: ", std::string(why.message())));
  }
  save->publish_again_at = clock_->Now() + PublishBackoff(save->publish_tries);
}

// What could not go on while the root was read-only.
void Engine::Impl::ContinueAfterScan(Run* run) {
  std::vector<int64_t> ids;
  for (const auto& entry : run->saves) ids.push_back(entry.second->id);
  for (int64_t id : ids) {
    Save* save = saves_.Find(id);
    if (save == nullptr) continue;
    if (save->phase == SavePhase::kFailing) {
      if (save->inflight_made) ContinueFailing(save);
    } else if (save->phase == SavePhase::kAdmitted) {
      if (!save->inflight_asked) StartInflight(save);
      TryPublish(save);
    }
  }
}

std::vector<int64_t> Engine::Impl::LeasedSequences(const Run* run) const {
  std::vector<int64_t> leased;
  for (const auto& entry : leases_) {
    if (entry.second.run == run) leased.push_back(entry.second.sequence);
  }
  return leased;
}

}  // namespace ckptd
