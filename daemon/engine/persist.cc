// From sealed to committed: parts to disk, publish, retention. The steps on disk are RootStore's.
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/engine/engine_impl.h"
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

// What a sealed part's files are in memory.
std::vector<FileImage> ImagesOf(const std::vector<v1::FileSpec>& files,
                                const std::map<std::string, v1::FilePlacement>& placed,
                                const std::vector<SegmentRef>& segments) {
  std::vector<FileImage> images;
  for (const v1::FileSpec& file : files) {
    FileImage image;
    image.path = file.path();
    image.size = file.size_bytes();
    int64_t offset = placed.at(file.path()).offset(), left = image.size;
    for (const SegmentRef& segment : segments) {
      if (offset >= segment.size) {
        offset -= segment.size;
        continue;
      }
      if (left == 0) break;
      const int64_t run = std::min(left, segment.size - offset);
      image.runs.emplace_back(segment.data + offset, static_cast<size_t>(run));
      left -= run;
      offset = 0;
    }
    images.push_back(std::move(image));
  }
  return images;
}

void Engine::Impl::StartInflight(Save* save) {
  const int64_t expected = ExpectedBytes(*save);
  save->inflight_asked = true;
  save->run->io->CreateInflight(save->id, save->key.tag, save->sequence,
                                ManifestBytes(*save, expected, options_.chunk_bytes),
                                [this, id = save->id](absl::Status made) {
                                  Save* begun = FindSaveById(id);
                                  if (begun == nullptr) return;
                                  begun->inflight_made = made.ok();
                                  if (!made.ok()) begun->inflight_asked = false;
                                  if (begun->phase == SavePhase::kFailing) return ContinueFailing(begun);
                                  if (IsReadOnly(made)) return AwaitScan(begun->run);
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
  Save* save = FindSaveById(save_id);
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
    Save* ready = FindSaveById(id);
    if (ready == nullptr) return;
    if (written.ok()) return Publish(ready);
    ready->phase = SavePhase::kAdmitted;
    FailSave(ready, Annotate(written, "recording that more checkpoints are kept"));
  });
}

void Engine::Impl::Publish(Save* save) {
  save->run->ledger->Commit(save->sequence, [this, id = save->id](absl::Status decided) {
    Save* ready = FindSaveById(id);
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
  Save* save = FindSaveById(save_id);
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
    return RescanRoot(run);
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
  run->num_kept_ckpts = save->num_kept_ckpts;
  run->ledger->SetRetention(save->num_kept_ckpts);
  TakePointers(run, std::move(result.pointers));
  EndSave(save, v1::COMMITTED);  // And Retain, when the history has it.
}

// The save is durable and complete, and its publish has changed nothing: it is tried again after the scan, or
// after a while when something could not be read.
void Engine::Impl::HoldPublish(Save* save, const absl::Status& why) {
  if (IsReadOnly(why)) return AwaitScan(save->run);
  if (++save->publish_tries == 1) {
    observer_->OnWarning(absl::StrCat(
        "the save of ", save->run->path, "/", save->key.tag,
        " is complete and could not be published yet, which is tried again: ", std::string(why.message())));
  }
  save->publish_again_at = clock_->Now() + PublishBackoff(save->publish_tries);
}

// The store has refused a change: it waits for a scan.
void Engine::Impl::AwaitScan(Run* run) {
  run->read_only = true;
  if (!run->scanning && !run->scan_again_at) RescanRoot(run);
}

// What could not go on while the root was read-only.
void Engine::Impl::ContinueAfterScan(Run* run) {
  std::vector<int64_t> ids;
  for (const auto& entry : run->saves) ids.push_back(entry.second->id);
  for (int64_t id : ids) {
    Save* save = FindSaveById(id);
    if (save == nullptr) continue;
    if (save->phase == SavePhase::kFailing) {
      if (save->inflight_made) ContinueFailing(save);
    } else if (save->phase == SavePhase::kAdmitted) {
      if (!save->inflight_asked) StartInflight(save);
      TryPublish(save);
    }
  }
}

// Retention goes on when it is on disk how a save has ended. Else a daemon that is killed may leave neither a
// checkpoint nor a word of it, and a late rank of its save would hear that it was lost.
void Engine::Impl::Record(Run* run, const storage::v1::Outcome& outcome) {
  ++run->outcomes;
  ++run->making_room;  // Retention is about to.
  run->ledger->RecordOutcome(outcome, [this, run, number = run->outcomes](absl::Status recorded) {
    Recorded(run, number, recorded);
  });
}

void Engine::Impl::Recorded(Run* run, int64_t number, const absl::Status& recorded) {
  --run->making_room;  // It has begun, or does not.
  if (recorded.ok()) {
    run->history_failed = false;
  } else {
    if (!std::exchange(run->history_failed, true)) {
      observer_->OnWarning(absl::StrCat("the history of ", run->path,
                                        " could not be written: ", std::string(recorded.message()),
                                        "; retention waits, and it is tried again"));
    }
    run->record_again_at = clock_->Now() + kTryAgain;
    CheckDrained();
  }
  // The room that the history lacks is what retention frees.
  if (!recorded.ok() && ReasonOf(recorded) != "NO_SPACE") return TryAdmitAll();
  run->outcomes_recorded = std::max(run->outcomes_recorded, number);
  Retain(run);
}

void Engine::Impl::RecordAgain(Run* run) {
  run->record_again_at.reset();
  ++run->making_room;
  run->ledger->WriteHistory(
      [this, run, number = run->outcomes](absl::Status written) { Recorded(run, number, written); });
}

// ---- retention

std::vector<int64_t> Engine::Impl::LeasedSequences(const Run* run) const {
  std::vector<int64_t> leased;
  for (const auto& entry : leases_) {
    if (entry.second.run == run) leased.push_back(entry.second.sequence);
  }
  return leased;
}

// What the newest attempt resumes from stays until every rank has read its part (or it has committed one of
// its own, for clients that do not say so): recovery may publish a newer one meanwhile.
int64_t Engine::Impl::HeldSequence(const Run& run) {
  const int64_t attempt = run.ledger->active_attempt();
  const auto decided = run.ledger->DecidedResume(attempt);
  if (!decided || decided->agreed) return 0;
  const bool has_own = std::any_of(run.committed.begin(), run.committed.end(), [attempt](const auto& entry) {
    return entry.second.summary.attempt() == attempt;
  });
  return has_own ? 0 : decided->sequence;
}

// Committed checkpoints that no policy wants: all that are older than the newest N that are not damaged.
// These never count as room for one that is not committed.
std::vector<int64_t> Engine::Impl::Victims(const Run& run, bool after_next) const {
  std::vector<int64_t> victims;
  if (!run.num_kept_ckpts) return victims;
  const std::vector<int64_t> leased = LeasedSequences(&run);
  // The next save most likely names the same pointers as the newest one, which is then free to go.
  const auto pointed = [&](int64_t sequence) {
    return run.pointed.contains(sequence) && !(after_next && sequence == run.committed.rbegin()->first);
  };
  const int64_t held = after_next ? 0 : HeldSequence(run);
  const auto good = std::count_if(run.committed.begin(), run.committed.end(),
                                  [](const auto& entry) { return !entry.second.damage; });
  int64_t surplus = static_cast<int64_t>(good) - *run.num_kept_ckpts + (after_next ? 1 : 0);
  if (surplus < 0) return victims;
  for (const auto& entry : run.committed) {  // Oldest first.
    if (!entry.second.damage && surplus-- <= 0) break;
    const bool wanted = run.Pinned(entry) || pointed(entry.first) || entry.first == held ||
                        run.deciding.contains(entry.first) ||
                        std::find(leased.begin(), leased.end(), entry.first) != leased.end();
    if (!wanted) victims.push_back(entry.first);
  }
  return victims;
}

// Whether what a commit pushes out is on its way. Not: what could not be removed, and is tried again.
bool Engine::Impl::Retaining(const Run& run) {
  const bool recording = run.outcomes_recorded < run.outcomes && !run.history_failed;
  return recording || run.evicting.size() > run.perhaps_evicted.size() || run.emptying_trash;
}

void Engine::Impl::TakePointers(Run* run, PointerFiles pointers) {
  run->pointed = std::move(pointers.holders);
  for (const std::string& warning : pointers.warnings)
    observer_->OnWarning(absl::StrCat("in the root ", run->path, " ", warning));
}

void Engine::Impl::Retain(Run* run) {
  if (run->outcomes_recorded < run->outcomes) return;
  for (int64_t sequence : Victims(*run, /*after_next=*/false)) {
    if (!run->evicting.insert(sequence).second) continue;
    const std::string tag = run->committed.at(sequence).summary.tag();
    run->io->Evict(tag, sequence, [this, run, sequence, tag](absl::Status evicted) {
      if (evicted.ok()) {
        run->evicting.erase(sequence);
        if (auto gone = run->committed.find(sequence); gone != run->committed.end()) {
          run->trash_bytes += gone->second.summary.size_bytes();
          run->committed.erase(gone);
          PruneResidents(run);
        }
      } else {
        run->perhaps_evicted.insert(sequence);
        observer_->OnWarning(absl::StrCat("retention could not remove ", run->path, "/", tag, ": ",
                                          std::string(evicted.message()),
                                          "; it is tried again after the next save"));
        RescanRoot(run);  // It may be half done, and then nothing else is done before the scan.
      }
      if (run->evicting.empty()) EmptyTrash(run);
      CheckDrained();
    });
  }
  if (run->evicting.empty()) EmptyTrash(run);  // A re-save leaves its predecessor there.
}

void Engine::Impl::EmptyTrash(Run* run) {
  if (run->emptying_trash) {
    run->empty_again = true;
    return;
  }
  run->emptying_trash = true;
  run->empty_again = false;
  run->empty_again_at.reset();
  run->io->EmptyTrash([this, run](absl::StatusOr<int64_t> left) {
    run->emptying_trash = false;
    if (left.ok()) {
      run->trash_bytes = *left;
      run->trash_stuck = false;
      // What a lease holds goes when the lease does; but a ReadFile may outlive its lease.
      if (*left > 0 && LeasedSequences(run).empty()) run->empty_again_at = clock_->Now() + kTryAgain;
    } else {
      if (!std::exchange(run->trash_stuck, true)) {
        observer_->OnWarning(
            absl::StrCat("the trash of ", run->path,
                         " cannot be emptied, which is tried again: ", std::string(left.status().message())));
      }
      run->empty_again_at = clock_->Now() + kTryAgain;
    }
    ++room_changes_[run->device];
    if (run->empty_again && left.ok()) return EmptyTrash(run);
    CheckDrained();
    AskRoom(run);
  });
}

// After an INDETERMINATE save, or a rename that may be half done: the disk decides what is committed. Until a
// scan succeeds, again and again.
void Engine::Impl::RescanRoot(Run* run) {
  if (run->scanning) {
    run->scan_again = true;
    return;
  }
  run->scanning = true;
  run->scan_again_at.reset();
  run->io->Rescan([this, run, before = WrittenDiskBytes(run->device)](absl::StatusOr<RootSnapshot> snapshot) {
    run->scanning = false;
    if (std::exchange(run->scan_again, false)) return RescanRoot(run);
    if (!snapshot.ok()) {
      if (!std::exchange(run->scan_failed, true)) {
        observer_->OnWarning(absl::StrCat("the root ", run->path,
                                          " is read-only: scanning it anew failed, and is tried again: ",
                                          std::string(snapshot.status().message())));
      }
      run->read_only = true;
      run->scan_again_at = clock_->Now() + kTryAgain;
      return;
    }
    run->scan_failed = false;
    Adopt(run, *std::move(snapshot));
    run->written_before = before;
    observer_->OnInfo(absl::StrCat("the root ", run->path, " was scanned anew and takes saves again"));
    ContinueAfterScan(run);
    ContinueResumes(run);
    EmptyTrash(run);
    TryAdmitAll();
  });
}

}  // namespace ckptd
