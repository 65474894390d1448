// SimRootIo: opening, queries, writes, publish, discard, evict, trash and records.
#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "tests/sim/sim_bucket.h"
#include "tests/sim/sim_disk.h"
#include "tests/sim/sim_disk_inl.h"

namespace ckptd::sim {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

SaveName NameOf(int run, const storage::v1::ManifestSummary& summary) {
  return {run, summary.attempt(), summary.tag(), summary.ordinal()};
}

}  // namespace

SimRootIo::~SimRootIo() {
  // Each worker's operation in progress may or may not have been done.
  for (Worker* worker : {&metadata_, &queries_, &reading_}) {
    if (worker->running != nullptr && disk_->random_.Percent(50)) (void)(*worker->running)();
  }
  for (const auto& write : writes_) disk_->oracle_->EndUse(write->use);
  for (const int64_t use : read_uses_) disk_->oracle_->EndUse(use);
  for (auto& dir : disk_->inflight_) dir.second.number = 0;
  disk_->lost_.clear();
}

std::optional<Instant> SimRootIo::pending_since() const {
  std::optional<Instant> since;
  auto add = [&since](Instant began) { since = since ? std::min(*since, began) : began; };
  for (const Worker* worker : {&metadata_, &queries_, &reading_}) {
    if (worker->running != nullptr) add(worker->since);
  }
  for (const auto& write : writes_) add(write->since);
  return since;
}

void SimRootIo::RunNext(Worker& worker) {
  if (worker.waiting.empty()) return;
  auto [latency, operation] = std::move(worker.waiting.front());
  worker.waiting.pop_front();
  worker.running = std::make_shared<Operation>(std::move(operation));
  worker.since = disk_->schedule_->clock().Now();
  if (disk_->faulty_) latency += std::max(Duration::zero(), disk_->hangs_until_ - worker.since);
  disk_->schedule_->After(latency, scope_.Guard([this, &worker] {
    auto tell = (*worker.running)();
    worker.running = nullptr;
    RunNext(worker);
    tell();
  }));
}

absl::Status SimRootIo::Writable() const {
  if (!latched_) return absl::OkStatus();
  return MakeError(absl::StatusCode::kFailedPrecondition, "ROOT_READ_ONLY",
                   "the root is read-only until it is rescanned");
}

void SimRootIo::Open(Callback<absl::StatusOr<RootSnapshot>> done) {
  Ask(metadata_, disk_->Latency(milliseconds(1), milliseconds(50)), std::move(done),
      [this]() -> absl::StatusOr<RootSnapshot> {
        if (disk_->schedule_->clock().Now() < disk_->locked_until_) {
          return MakeError(absl::StatusCode::kFailedPrecondition, "ROOT_LOCKED",
                           "another daemon, which is ending, holds the root");
        }
        // Recovery stops at a read error: before it has begun, or after it has published what it could.
        const bool fails = Hits(disk_->faults_.read);
        if (fails && disk_->random_.Percent(50)) return Eio("listing the root");
        std::vector<RecoveredSave> recovered;
        disk_->Recover(&recovered);
        if (fails) return Eio("reading the manifests");
        return disk_->Scan(std::move(recovered));
      });
}

void SimRootIo::CheckTarget(std::string tag, std::vector<std::string>, Callback<absl::Status> done) {
  Ask(queries_, disk_->Latency(microseconds(20), milliseconds(1)), std::move(done),
      [this, tag = std::move(tag)]() -> absl::Status {
        if (Hits(disk_->faults_.read)) return Eio("looking at the tag");
        if (!disk_->foreign_.contains(tag)) return absl::OkStatus();
        return MakeError(absl::StatusCode::kAlreadyExists, "TAG_FOREIGN", absl::StrCat(tag, " is not ours"));
      });
}

void SimRootIo::FreeBytes(Callback<absl::StatusOr<int64_t>> done) {
  Ask(queries_, disk_->Latency(microseconds(20), milliseconds(1)), std::move(done),
      [this]() -> absl::StatusOr<int64_t> {
        if (Hits(disk_->faults_.read)) return Eio("asking for the free bytes");
        return disk_->free_bytes();
      });
}

void SimRootIo::CreateInflight(InflightId64 id, std::string tag, int64_t sequence, int64_t manifest_bytes,
                               Callback<absl::Status> done) {
  Ask(metadata_, disk_->Latency(microseconds(200), milliseconds(5)), std::move(done),
      [this, id, tag = std::move(tag), sequence, manifest_bytes]() -> absl::Status {
        absl::Status status = Writable();
        if (status.ok() && Hits(disk_->faults_.create)) status = Eio("making an in-flight directory");
        if (status.ok() && disk_->free_bytes() < manifest_bytes)
          status = ErrnoError(ENOSPC, "allocating the manifest");
        if (!status.ok()) {
          if (ReasonOf(status) != "NO_SPACE") disk_->oracle_->Excuse(disk_->run_, sequence);
          return status;
        }
        SimDisk::InflightDir& dir = disk_->inflight_[disk_->next_dir_++];
        dir.number = id;
        dir.tag = tag;
        dir.sequence = sequence;
        dir.found.bytes = manifest_bytes;
        return absl::OkStatus();
      });
}

void SimRootIo::WritePart(InflightId64 id, storage::v1::PartRecord record, std::vector<FileImage> files,
                          std::shared_ptr<CheckpointReader> /*base*/,
                          std::shared_ptr<std::atomic<int64_t>> written_bytes,
                          Callback<absl::StatusOr<storage::v1::PartRecord>> done) {
  auto write = std::make_shared<Write>();
  write->id = id;
  write->record = std::move(record);
  write->files = std::move(files);
  write->written = std::move(written_bytes);
  write->done = std::move(done);
  std::vector<std::span<const std::byte>> memory;
  for (const FileImage& file : write->files) memory.insert(memory.end(), file.runs.begin(), file.runs.end());
  write->use = disk_->oracle_->BeginUse(std::move(memory), disk_->run_, write->record.sequence(),
                                        write->record.rank());
  write->since = disk_->schedule_->clock().Now();
  writes_.insert(write);
  disk_->schedule_->After(disk_->Latency(microseconds(100), milliseconds(3)),
                          scope_.Guard([this, write] { StartWrite(write); }));
}

// Allocates, and reads the memory for the first time.
void SimRootIo::StartWrite(std::shared_ptr<Write> write) {
  int64_t bytes = 0;
  for (const FileImage& file : write->files) {
    const Marks& marks = write->marks[file.path] = ReadMarks(file.runs);
    write->contents[file.path] = Digest(marks);
    bytes += (file.size + 4095) / 4096 * 4096;
  }
  absl::Status status;
  auto dir = disk_->Find(write->id);
  if (dir == disk_->inflight_.end()) {
    status = absl::NotFoundError("no such save in flight");
  } else if (disk_->free_bytes() < bytes) {
    status = ErrnoError(ENOSPC, "allocating");
  } else if (Hits(disk_->faults_.write)) {
    dir->second.found.bytes += bytes / 2;
    status = Eio("writing");
  } else {
    dir->second.found.bytes += bytes;
  }
  Duration latency = disk_->Latency(milliseconds(1), milliseconds(200));
  if (disk_->faulty_) {
    latency += std::max(Duration::zero(), disk_->hangs_until_ - disk_->schedule_->clock().Now());
  }
  const SaveName name = NameOf(disk_->run_, write->record.checkpoint());
  // An admitted save has its room reserved: nothing else uses this disk.
  if (!status.ok() && ReasonOf(status) != "NO_SPACE") disk_->oracle_->Excuse(name);
  disk_->schedule_->After(latency, scope_.Guard([this, write, status, name] {
    for (const FileImage& file : write->files) {
      if (status.ok() && write->contents.at(file.path) != Digest(file.runs)) {
        disk_->oracle_->Violated(absl::StrCat("the memory of rank ", write->record.rank(), " of ",
                                              name.ToString(), " changed while it was being written"));
      }
    }
    disk_->oracle_->EndUse(write->use);
    if (!status.ok()) {
      writes_.erase(write);
      return write->done(status);
    }
    EndWrite(write);
  }));
}

// The files are synced; the part record now makes the part durable.
void SimRootIo::EndWrite(std::shared_ptr<Write> write) {
  using Result = absl::StatusOr<storage::v1::PartRecord>;
  Ask(metadata_, disk_->Latency(microseconds(200), milliseconds(5)),
      Callback<Result>([write](Result result) { write->done(std::move(result)); }),
      [this, write]() -> Result {
        writes_.erase(write);
        auto dir = disk_->Find(write->id);
        if (dir == disk_->inflight_.end()) return absl::NotFoundError("no such save in flight");
        for (const FileImage& image : write->files) {
          storage::v1::FileRecord& file = *write->record.add_files();
          file.set_path(image.path);
          file.set_size_bytes(image.size);
          file.set_rank(write->record.rank());
          const uint64_t digest = write->contents.at(image.path);  // In place of checksums.
          file.add_chunk_crc32c(static_cast<uint32_t>(digest));
          file.add_chunk_crc32c(static_cast<uint32_t>(digest >> 32));
          *write->written += image.size;
        }
        const int rank = write->record.rank();
        disk_->oracle_->PartOnDisk(NameOf(disk_->run_, write->record.checkpoint()), rank, write->contents);
        SimDisk::Generation& found = dir->second.found;
        found.parts.push_back(write->record);
        found.contents[rank] = write->contents;
        found.marks.insert(write->marks.begin(), write->marks.end());
        dir->second.recorded.insert(rank);
        return write->record;
      });
}

void SimRootIo::Publish(InflightId64 id, storage::v1::ManifestSummary summary,
                        std::vector<storage::v1::PartRecord>, Callback<PublishResult> done) {
  Ask(metadata_, disk_->Latency(microseconds(500), milliseconds(10)), std::move(done),
      [this, id, summary = std::move(summary)]() -> PublishResult {
        const SaveName name = NameOf(disk_->run_, summary);
        auto failed = [&](absl::Status status) {
          disk_->oracle_->Excuse(name);
          return PublishResult{PublishOutcome::kFailed, std::move(status)};
        };
        if (absl::Status writable = Writable(); !writable.ok()) return failed(writable);
        auto dir = disk_->Find(id);
        if (disk_->lost_.contains(id))
          return failed(MakeError(absl::StatusCode::kAborted, "ROOT_CHANGED", ".ckptd was removed"));
        if (dir == disk_->inflight_.end()) return failed(absl::NotFoundError("no such save in flight"));
        if (Hits(disk_->faults_.publish)) return failed(Eio("writing the manifest"));
        dir->second.found.summary = summary;
        if (absl::Status renamed = disk_->Rename(dir->second); !renamed.ok()) return failed(renamed);
        disk_->inflight_.erase(dir);
        if (!Hits(disk_->faults_.indeterminate)) {
          disk_->unseen_.erase(summary.tag());
          PublishResult committed{PublishOutcome::kCommitted, absl::OkStatus()};
          for (const std::string& tag : disk_->unseen_) {
            committed.root_has_new_checkpoints = true;
            committed.highest_new_sequence =
                std::max(committed.highest_new_sequence, disk_->tags_.at(tag).summary.sequence());
          }
          return committed;
        }
        latched_ = true;
        disk_->oracle_->Excuse(name);
        return {PublishOutcome::kIndeterminate, Eio("syncing the root")};
      });
}

void SimRootIo::Discard(InflightId64 id, Callback<absl::Status> done) {
  Ask(metadata_, disk_->Latency(microseconds(200), milliseconds(5)), std::move(done),
      [this, id]() -> absl::Status {
        if (absl::Status writable = Writable(); !writable.ok()) return writable;
        if (disk_->lost_.erase(id) > 0) return absl::OkStatus();
        auto dir = disk_->Find(id);
        if (dir == disk_->inflight_.end()) return absl::NotFoundError("no such save in flight");
        dir->second.number = 0;  // The next scan decides, unless the directory is gone.
        const bool fails = Hits(disk_->faults_.discard);
        if (fails && disk_->random_.Percent(50)) return Eio("renaming to trash");
        disk_->trash_.push_back({dir->second.sequence, dir->second.found.bytes});
        disk_->inflight_.erase(dir);
        if (!fails) return absl::OkStatus();
        latched_ = true;
        return Eio("syncing the trash");
      });
}

void SimRootIo::Evict(std::string tag, int64_t sequence, Callback<absl::Status> done) {
  Ask(metadata_, disk_->Latency(microseconds(200), milliseconds(5)), std::move(done),
      [this, tag = std::move(tag), sequence]() -> absl::Status {
        if (absl::Status writable = Writable(); !writable.ok()) return writable;
        auto victim = disk_->tags_.find(tag);
        if (victim == disk_->tags_.end() || victim->second.summary.sequence() != sequence)
          return MakeError(absl::StatusCode::kNotFound, "NO_CHECKPOINT", tag);
        if (victim->second.pinned) {
          disk_->oracle_->Violated(absl::StrCat("retention asks to evict ", tag, ", which is pinned"));
          return MakeError(absl::StatusCode::kFailedPrecondition, "PINNED", tag);
        }
        const bool fails = Hits(disk_->faults_.evict);
        if (fails && disk_->random_.Percent(50)) return Eio("renaming to trash");
        disk_->MoveToTrash(victim->second);
        const auto evicted = std::move(victim->second);
        disk_->evicted_.push_back(evicted);
        disk_->tags_.erase(victim);
        std::vector<int64_t> left;
        for (const auto& other : disk_->tags_) {
          if (!other.second.damage) left.push_back(other.second.summary.sequence());
        }
        disk_->oracle_->Evicted(disk_->run_, evicted.summary, left, evicted.pinned);
        if (disk_->bucket_ != nullptr) disk_->bucket_->OnEvicted(evicted, disk_->record_.uploads());
        if (!fails) return absl::OkStatus();
        latched_ = true;
        return Eio("syncing the root");
      });
}

void SimRootIo::EmptyTrash(TrashTerms terms, Callback<absl::StatusOr<TrashLeft>> done) {
  EmptyStep(terms, std::move(done));
}

// Deletes one entry of trash per step, behind the other queued operations.
void SimRootIo::EmptyStep(TrashTerms terms, Callback<absl::StatusOr<TrashLeft>> done) {
  struct Step {
    std::optional<TrashLeft> left = std::nullopt;  // Set: the pass is over.
    int64_t removed_bytes = 0;
  };
  Ask(metadata_, disk_->Latency(microseconds(100), milliseconds(20)),
      Callback<absl::StatusOr<Step>>(
          [this, terms, done = std::move(done)](absl::StatusOr<Step> step) mutable {
            if (!step.ok()) return done(step.status());
            if (step->left) return done(*step->left);
            terms.room_bytes = std::max<int64_t>(0, terms.room_bytes - step->removed_bytes);
            EmptyStep(terms, std::move(done));
          }),
      [this, terms]() -> absl::StatusOr<Step> {
        if (absl::Status writable = Writable(); !writable.ok()) return writable;
        if (Hits(disk_->faults_.trash)) return Eio("removing");
        const auto next = disk_->NextInTrash(terms, *readers_);
        if (next == disk_->trash_.end()) return Step{.left = disk_->LeftInTrash(terms)};
        disk_->oracle_->TrashRemoved(disk_->run_, next->sequence);
        const Step removed{.removed_bytes = next->bytes};
        disk_->trash_.erase(next);
        return removed;
      });
}

void SimRootIo::ListTrash(Callback<absl::StatusOr<std::vector<TrashedCheckpoint>>> done) {
  Ask(metadata_, disk_->Latency(microseconds(100), milliseconds(2)), std::move(done),
      [this]() -> absl::StatusOr<std::vector<TrashedCheckpoint>> {
        std::vector<TrashedCheckpoint> list;
        for (const auto& entry : disk_->trash_) {
          if (entry.whole)
            list.push_back({{entry.whole->summary, /*pinned=*/false, entry.whole->damage}, entry.moved_us});
        }
        return list;
      });
}

void SimRootIo::Undelete(std::string tag, int64_t sequence, Callback<absl::StatusOr<Undeleted>> done) {
  // Until a scan has answered, the engine does not know whether an indeterminate save took the tag.
  const bool knows_tags = !WaitsForScan();
  Ask(metadata_, disk_->Latency(microseconds(200), milliseconds(5)), std::move(done),
      [this, tag = std::move(tag), sequence, knows_tags]() -> absl::StatusOr<Undeleted> {
        if (absl::Status writable = Writable(); !writable.ok()) return writable;
        const auto found =
            std::find_if(disk_->trash_.begin(), disk_->trash_.end(), [&](const SimDisk::TrashEntry& entry) {
              return entry.whole && entry.whole->summary.tag() == tag && entry.sequence == sequence;
            });
        if (found == disk_->trash_.end())
          return MakeError(absl::StatusCode::kNotFound, "NO_CHECKPOINT",
                           absl::StrCat(tag, " is not in trash"));
        if (disk_->foreign_.contains(tag))
          return MakeError(absl::StatusCode::kAlreadyExists, "TAG_FOREIGN", tag);
        if (disk_->tags_.contains(tag)) {
          if (knows_tags)
            disk_->oracle_->Violated(absl::StrCat("the engine asks to bring back ", tag, ", which is taken"));
          return MakeError(absl::StatusCode::kAlreadyExists, "TAG_TAKEN", tag);
        }
        if (Hits(disk_->faults_.pin)) return Eio("writing the pins");
        SimDisk::Generation& back = disk_->tags_[tag] = *std::move(found->whole);
        back.pinned = true;
        disk_->trash_.erase(found);
        if (!Hits(disk_->faults_.evict)) return Undeleted{{back.summary, true, back.damage}, {}};
        latched_ = true;
        return MakeError(absl::StatusCode::kUnknown, "INDETERMINATE", "syncing the root");
      });
}

void SimRootIo::SaveRunRecord(storage::v1::RunRecord record, Callback<absl::Status> done) {
  Ask(metadata_, disk_->Latency(microseconds(200), milliseconds(5)), std::move(done),
      [this, record = std::move(record)]() -> absl::Status {
        const bool fails = Hits(disk_->faults_.record);
        if (!fails || disk_->random_.Percent(50)) {
          disk_->record_ = record;
        } else {
          for (const auto& outcome : record.outcomes())
            disk_->oracle_->MayBeReportedLost(disk_->run_, outcome.sequence());
        }
        return fails ? Eio("writing the run's record") : absl::OkStatus();
      });
}

void SimRootIo::SetPinned(std::string tag, int64_t sequence, bool pinned, Callback<absl::Status> done) {
  Ask(metadata_, disk_->Latency(microseconds(200), milliseconds(5)), std::move(done),
      [this, tag = std::move(tag), sequence, pinned]() -> absl::Status {
        if (absl::Status writable = Writable(); !writable.ok()) return writable;
        auto found = disk_->tags_.find(tag);
        if (found == disk_->tags_.end() || found->second.summary.sequence() != sequence)
          return MakeError(absl::StatusCode::kNotFound, "NO_CHECKPOINT", tag);
        if (Hits(disk_->faults_.pin)) return Eio("writing the pins");
        found->second.pinned = pinned;
        return absl::OkStatus();
      });
}

// The trainers of the simulation name no pointers.
void SimRootIo::ReleasePointers(std::string, int64_t, Callback<absl::StatusOr<PointerFiles>> done) {
  Ask(metadata_, disk_->Latency(microseconds(200), milliseconds(5)), std::move(done),
      []() -> absl::StatusOr<PointerFiles> { return PointerFiles(); });
}

void SimRootIo::SetDamage(std::string tag, int64_t sequence, std::optional<storage::v1::Damage> damage,
                          Callback<absl::StatusOr<PointerFiles>> done) {
  Ask(metadata_, disk_->Latency(microseconds(200), milliseconds(5)), std::move(done),
      [this, tag = std::move(tag), sequence, damage = std::move(damage)]() -> absl::StatusOr<PointerFiles> {
        if (absl::Status writable = Writable(); !writable.ok()) return writable;
        auto found = disk_->tags_.find(tag);
        if (found == disk_->tags_.end() || found->second.summary.sequence() != sequence)
          return MakeError(absl::StatusCode::kNotFound, "NO_CHECKPOINT", tag);
        if (damage) disk_->oracle_->MarkedDamaged(disk_->run_, sequence);
        if (Hits(disk_->faults_.pin)) return Eio("writing the damages");
        found->second.damage = damage;
        return PointerFiles();
      });
}

void SimRootIo::Rescan(Callback<absl::StatusOr<RootSnapshot>> done) {
  ++scans_;
  Callback<absl::StatusOr<RootSnapshot>> scanned = [this, done = std::move(done)](auto snapshot) mutable {
    --scans_;
    done(std::move(snapshot));
  };
  Ask(metadata_, disk_->Latency(milliseconds(1), milliseconds(50)), std::move(scanned),
      [this]() -> absl::StatusOr<RootSnapshot> {
        if (Hits(disk_->faults_.rescan)) return Eio("scanning");
        std::vector<RecoveredSave> recovered;
        disk_->Recover(&recovered);
        latched_ = false;
        return disk_->Scan(std::move(recovered));
      });
}

}  // namespace ckptd::sim
