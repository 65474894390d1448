#include "tests/testing/fake_root_io.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"

namespace ckptd {
namespace {

class FakeReader : public CheckpointReader {
 public:
  FakeReader(Manifest manifest, std::shared_ptr<FakeDisk> disk)
      : manifest_(std::move(manifest)), disk_(std::move(disk)) {
    disk_->readers.insert(manifest_.summary.sequence());
  }
  ~FakeReader() override { disk_->readers.erase(disk_->readers.find(manifest_.summary.sequence())); }
  const Manifest& manifest() const override { return manifest_; }
  absl::Status Read(const std::string& path, int64_t offset, std::span<std::byte> into) override {
    const std::string& content = disk_->bytes.at(absl::StrCat(manifest_.summary.sequence(), "/", path));
    std::copy_n(reinterpret_cast<const std::byte*>(content.data()) + offset, into.size(), into.begin());
    return absl::OkStatus();
  }

 private:
  Manifest manifest_;
  std::shared_ptr<FakeDisk> disk_;
};

std::string ContentOf(const FileImage& image) {
  std::string content;
  for (const auto& run : image.runs) content.append(reinterpret_cast<const char*>(run.data()), run.size());
  return content;
}

}  // namespace

void FakeRootIo::Run(std::string_view call, bool hold, absl::AnyInvocable<void()> work) {
  ++calls[std::string(call)];
  ++*pending_;
  work = [pending = std::weak_ptr<int>(pending_), then = std::move(work)]() mutable {
    // The root was closed: its operations would use it.
    const std::shared_ptr<int> alive = pending.lock();
    if (alive == nullptr) return;
    --*alive;
    then();
  };
  if (hold || held.contains(call)) {
    held_.push_back(std::move(work));
  } else {
    queue_->push_back(std::move(work));
  }
}

absl::Status FakeRootIo::ErrorOf(std::string_view call) const {
  const auto error = errors.find(call);
  return error == errors.end() ? absl::OkStatus() : error->second;
}

absl::Status FakeRootIo::CheckWritable() const {
  if (!read_only_) return absl::OkStatus();
  return MakeError(absl::StatusCode::kFailedPrecondition, "ROOT_READ_ONLY",
                   "the root is read-only until the next scan");
}

std::set<std::string> FakeRootIo::inflight() const {
  std::set<std::string> tags;
  for (const auto& entry : inflight_) tags.insert(entry.second.first);
  return tags;
}

void FakeRootIo::ReleaseHeld() {
  hold_writes = hold_publish = hold_target = false;
  held.clear();
  for (auto& work : held_) queue_->push_back(std::move(work));
  held_.clear();
}

RootSnapshot FakeRootIo::Snapshot() const {
  RootSnapshot snapshot;
  snapshot.probe.file_system = "fake";
  snapshot.probe.io_backend = "threads";
  snapshot.probe.free_bytes = disk_->free_bytes;
  snapshot.recovered = disk_->recovered;
  snapshot.committed = disk_->committed;
  snapshot.pointers = Pointers();
  snapshot.run_record = disk_->run_record;
  snapshot.highest_sequence = disk_->committed.empty() ? 0 : disk_->committed.rbegin()->first;
  snapshot.trash_bytes = disk_->trash_bytes;
  snapshot.foreign = Foreign();
  return snapshot;
}

// Like the real one when every pointer can be written.
PointerFiles FakeRootIo::Pointers() const {
  std::map<std::string, int64_t> newest;
  for (const auto& [sequence, checkpoint] : disk_->committed) {
    for (const auto& pointer : checkpoint.summary.pointers()) newest[pointer.first] = sequence;
  }
  PointerFiles state = more_pointers;
  for (const auto& entry : newest) state.holders.insert(entry.second);
  return state;
}

void FakeRootIo::Open(Callback<absl::StatusOr<RootSnapshot>> done) {
  Run("Open", false, [this, done = std::move(done)]() mutable {
    if (!disk_->open_error.ok()) return done(disk_->open_error);
    if (!disk_->locked) return done(Snapshot());
    done(MakeError(absl::StatusCode::kFailedPrecondition, "ROOT_LOCKED", "another daemon holds the root"));
  });
}

void FakeRootIo::CheckTarget(std::string tag, std::vector<std::string> pointers,
                             Callback<absl::Status> done) {
  Run("CheckTarget", hold_target,
      [this, tag, pointers = std::move(pointers), done = std::move(done)]() mutable {
        for (const std::string& name : pointers) {
          const auto& taken = disk_->directories;
          if (std::find(taken.begin(), taken.end(), name) == taken.end()) continue;
          return done(MakeError(absl::StatusCode::kAlreadyExists, "POINTER_FOREIGN",
                                absl::StrCat(name, " is a directory")));
        }
        const auto& foreign = disk_->foreign;
        if (std::find(foreign.begin(), foreign.end(), tag) == foreign.end()) return done(absl::OkStatus());
        done(MakeError(absl::StatusCode::kAlreadyExists, "TAG_FOREIGN", absl::StrCat(tag, " is not ours")));
      });
}

void FakeRootIo::FreeBytes(Callback<absl::StatusOr<int64_t>> done) {
  Run("FreeBytes", hold_target, [this, done = std::move(done)]() mutable {
    if (absl::Status error = ErrorOf("FreeBytes"); !error.ok()) return done(error);
    done(disk_->free_bytes);
  });
}

void FakeRootIo::CreateInflight(InflightId64 id, std::string tag, int64_t sequence, int64_t,
                                Callback<absl::Status> done) {
  Run("CreateInflight", false, [this, id, tag, sequence, done = std::move(done)]() mutable {
    if (absl::Status error = ErrorOf("CreateInflight"); !error.ok()) return done(error);
    if (absl::Status error = CheckWritable(); !error.ok()) return done(error);
    inflight_[id] = {tag, sequence};
    done(absl::OkStatus());
  });
}

void FakeRootIo::WritePart(InflightId64 id, storage::v1::PartRecord record, std::vector<FileImage> files,
                           std::shared_ptr<CheckpointReader> base,
                           std::shared_ptr<std::atomic<int64_t>> written_bytes,
                           Callback<absl::StatusOr<storage::v1::PartRecord>> done) {
  write_bases.push_back(base == nullptr ? 0 : base->manifest().summary.sequence());
  Run("WritePart", hold_writes,
      [this, id, record = std::move(record), files = std::move(files), written_bytes,
       done = std::move(done)]() mutable {
        if (!write_error.ok()) return done(write_error);
        for (const FileImage& image : files) {
          const std::string content = ContentOf(image);
          written_[image.path] = content;
          *written_bytes += image.size;
          disk_->bytes[absl::StrCat(inflight_.at(id).second, "/", image.path)] = content;
          storage::v1::FileRecord& file = *record.add_files();
          file.set_path(image.path);
          file.set_size_bytes(image.size);
          file.set_rank(record.rank());
        }
        done(std::move(record));
      });
}

void FakeRootIo::Publish(InflightId64 id, storage::v1::ManifestSummary summary,
                         std::vector<storage::v1::PartRecord> parts, Callback<PublishResult> done) {
  Run("Publish", hold_publish,
      [this, id, summary = std::move(summary), parts = std::move(parts), done = std::move(done)]() mutable {
        if (absl::Status error = CheckWritable(); !error.ok()) {
          return done({.outcome = PublishOutcome::kFailed, .status = error, .retryable = true});
        }
        // Like the real one: every rank's record must exist.
        const bool whole = static_cast<int>(parts.size()) == summary.world_size() &&
                           std::all_of(parts.begin(), parts.end(), [&](const auto& part) {
                             return part.sequence() == summary.sequence();
                           });
        if (!whole) return done({PublishOutcome::kFailed, absl::InvalidArgumentError("a part is missing")});
        if (publish_result.outcome == PublishOutcome::kCommitted ||
            (publish_result.outcome == PublishOutcome::kIndeterminate && disk_->unknown_is_published)) {
          Manifest manifest;
          manifest.summary = summary;
          for (const auto& part : parts) {
            for (const auto& file : part.files()) *manifest.body.add_files() = file;
          }
          std::erase_if(disk_->committed,
                        [&](const auto& entry) { return entry.second.summary.tag() == summary.tag(); });
          CommittedCheckpoint& committed = disk_->committed[summary.sequence()];
          committed.summary = summary;
          committed.summary.set_commit_time_us(summary.create_time_us());
          disk_->manifests[summary.sequence()] = std::move(manifest);
          inflight_.erase(id);
        }
        PublishResult result = publish_result;
        if (result.outcome == PublishOutcome::kCommitted) result.pointers = Pointers();
        if (result.outcome == PublishOutcome::kIndeterminate) {
          inflight_.erase(id);
          read_only_ = true;
        }
        done(std::move(result));
      });
}

void FakeRootIo::Discard(InflightId64 id, Callback<absl::Status> done) {
  Run("Discard", false, [this, id, done = std::move(done)]() mutable {
    if (absl::Status error = CheckWritable(); !error.ok()) return done(error);
    if (discard_error.ok()) inflight_.erase(id);
    done(discard_error);
  });
}

void FakeRootIo::Evict(std::string tag, int64_t sequence, Callback<absl::Status> done) {
  Run("Evict", false, [this, tag, sequence, done = std::move(done)]() mutable {
    if (absl::Status error = ErrorOf("Evict"); !error.ok()) return done(error);
    if (absl::Status error = CheckWritable(); !error.ok()) return done(error);
    disk_->evicted.push_back(tag);
    disk_->outcomes_at_evict = disk_->run_record.outcomes_size();
    // When it was moved is the time of the next EmptyTrash.
    if (const auto evicted = disk_->committed.find(sequence); evicted != disk_->committed.end())
      disk_->trashed[sequence] = {evicted->second, INT64_MAX};
    disk_->committed.erase(sequence);
    done(absl::OkStatus());
  });
}

void FakeRootIo::EmptyTrash(TrashTerms terms, Callback<absl::StatusOr<TrashLeft>> done) {
  trash_terms = terms;
  Run("EmptyTrash", false, [this, terms, done = std::move(done)]() mutable {
    if (absl::Status error = ErrorOf("EmptyTrash"); !error.ok()) return done(error);
    disk_->kept_in_trash = disk_->readers;
    disk_->free_bytes += std::exchange(disk_->trash_bytes, 0);
    done(EmptyNow(terms));
  });
}

// Like the real one, but for the bytes of evicted checkpoints that have no grace period: these free nothing,
// and each open reader keeps one byte.
TrashLeft FakeRootIo::EmptyNow(TrashTerms terms) {
  TrashLeft left{.bytes = static_cast<int64_t>(disk_->readers.size())};
  for (auto entry = disk_->trashed.begin(); entry != disk_->trashed.end();) {
    const int64_t bytes = entry->second.checkpoint.summary.size_bytes();
    int64_t& moved_us = entry->second.moved_us;
    moved_us = std::min(moved_us, terms.now_us);
    const int64_t due_in = moved_us + terms.grace_us - terms.now_us;
    if (due_in > 0 && terms.room_bytes <= 0) {
      left.bytes += bytes;
      left.in_grace_bytes += bytes;
      left.due_in_us = left.due_in_us == 0 ? due_in : std::min(left.due_in_us, due_in);
      ++entry;
      continue;
    }
    if (terms.grace_us > 0) disk_->free_bytes += bytes;
    terms.room_bytes -= bytes;
    entry = disk_->trashed.erase(entry);
  }
  return left;
}

void FakeRootIo::ListTrash(Callback<absl::StatusOr<std::vector<TrashedCheckpoint>>> done) {
  Run("ListTrash", false, [this, done = std::move(done)]() mutable {
    if (absl::Status error = ErrorOf("ListTrash"); !error.ok()) return done(error);
    std::vector<TrashedCheckpoint> list;
    for (const auto& [sequence, trashed] : disk_->trashed) list.push_back(trashed);
    done(std::move(list));
  });
}

void FakeRootIo::Undelete(std::string tag, int64_t sequence, Callback<absl::StatusOr<Undeleted>> done) {
  Run("Undelete", false, [this, tag, sequence, done = std::move(done)]() mutable {
    if (absl::Status error = ErrorOf("Undelete"); !error.ok()) return done(error);
    for (auto entry = disk_->trashed.rbegin(); entry != disk_->trashed.rend(); ++entry) {
      CommittedCheckpoint back = entry->second.checkpoint;
      if (back.summary.tag() != tag || (sequence != 0 && entry->first != sequence)) continue;
      back.pinned = true;
      disk_->committed[entry->first] = back;
      disk_->trashed.erase(entry->first);
      return done(Undeleted{back, Pointers()});
    }
    done(MakeError(absl::StatusCode::kNotFound, "NO_CHECKPOINT", absl::StrCat(tag, " is not in the trash")));
  });
}

void FakeRootIo::SaveRunRecord(storage::v1::RunRecord record, Callback<absl::Status> done) {
  Run("SaveRunRecord", false, [this, record = std::move(record), done = std::move(done)]() mutable {
    if (absl::Status error = ErrorOf("SaveRunRecord"); !error.ok()) return done(error);
    disk_->run_record = std::move(record);
    done(absl::OkStatus());
  });
}

void FakeRootIo::SetPinned(std::string, int64_t sequence, bool pinned, Callback<absl::Status> done) {
  Run("SetPinned", false, [this, sequence, pinned, done = std::move(done)]() mutable {
    if (absl::Status error = ErrorOf("SetPinned"); !error.ok()) return done(error);
    disk_->committed.at(sequence).pinned = pinned;
    done(absl::OkStatus());
  });
}

void FakeRootIo::SetDamage(std::string, int64_t sequence, std::optional<storage::v1::Damage> damage,
                           Callback<absl::StatusOr<PointerFiles>> done) {
  Run("SetDamage", false, [this, sequence, damage = std::move(damage), done = std::move(done)]() mutable {
    if (absl::Status error = ErrorOf("SetDamage"); !error.ok()) return done(error);
    // In a shared root the nodes may know of a checkpoint before it is listed.
    if (const auto found = disk_->committed.find(sequence); found != disk_->committed.end())
      found->second.damage = std::move(damage);
    done(Pointers());
  });
}

void FakeRootIo::ReleasePointers(std::string, int64_t, Callback<absl::StatusOr<PointerFiles>> done) {
  Run("ReleasePointers", false, [this, done = std::move(done)]() mutable {
    if (absl::Status error = ErrorOf("ReleasePointers"); !error.ok()) return done(error);
    done(PointerFiles());
  });
}

void FakeRootIo::OpenCheckpoint(std::string tag, int64_t sequence,
                                Callback<absl::StatusOr<std::shared_ptr<CheckpointReader>>> done) {
  Run("OpenCheckpoint", false, [this, tag, sequence, done = std::move(done)]() mutable {
    if (absl::Status error = ErrorOf("OpenCheckpoint"); !error.ok()) return done(error);
    if (disk_->unreadable.contains(sequence)) {
      return done(MakeError(absl::StatusCode::kDataLoss, "SHORT_FILE", "rank0.pt is not there",
                            {{"path", "rank0.pt"}, {"expected", "100"}, {"found", "0"}}));
    }
    auto manifest = disk_->manifests.find(sequence);
    if (manifest == disk_->manifests.end()) {
      return done(MakeError(absl::StatusCode::kNotFound, "NO_CHECKPOINT", absl::StrCat("no ", tag)));
    }
    done(std::make_shared<FakeReader>(manifest->second, disk_));
  });
}

void FakeRootIo::ReadBack(std::shared_ptr<CheckpointReader> reader, std::string path, int64_t offset,
                          int64_t size, Callback<absl::Status> done) {
  Run("ReadBack", false, [this, reader, path, offset, size, done = std::move(done)]() mutable {
    if (absl::Status error = ErrorOf("ReadBack"); !error.ok()) return done(error);
    std::vector<std::byte> bytes(static_cast<size_t>(size));
    done(reader->Read(path, offset, bytes));
  });
}

void FakeRootIo::ReadFiles(std::shared_ptr<CheckpointReader> reader, std::vector<FileTarget> files,
                           Callback<absl::Status> done) {
  Run("ReadFiles", false, [this, reader, files = std::move(files), done = std::move(done)]() mutable {
    if (absl::Status error = ErrorOf("ReadFiles"); !error.ok()) return done(error);
    absl::Status read;
    for (const FileTarget& file : files) {
      int64_t offset = 0;
      for (const std::span<std::byte> run : file.runs) {
        if (read.ok()) read = reader->Read(file.path, offset, run);
        offset += static_cast<int64_t>(run.size());
      }
    }
    done(read);
  });
}

void FakeRootIo::CheckImages(std::vector<FileImage> images, std::vector<storage::v1::FileRecord> records,
                             int32_t, Callback<absl::Status> done) {
  Run("CheckImages", false,
      [this, images = std::move(images), records = std::move(records), done = std::move(done)]() mutable {
        if (absl::Status error = ErrorOf("CheckImages"); !error.ok()) return done(error);
        for (size_t i = 0; i < images.size(); ++i) {
          if (ContentOf(images[i]) == written_.at(records[i].path())) continue;
          return done(MakeError(absl::StatusCode::kDataLoss, "CORRUPT_FILE", images[i].path));
        }
        done(absl::OkStatus());
      });
}

void FakeRootIo::ListForeign(Callback<absl::StatusOr<std::vector<ForeignCheckpoint>>> done) {
  Run("ListForeign", false, [this, done = std::move(done)]() mutable {
    if (absl::Status error = ErrorOf("ListForeign"); !error.ok()) return done(error);
    std::vector<ForeignCheckpoint> list;
    for (const ForeignTag& tag : Foreign()) list.push_back({tag, 100, 2});
    done(std::move(list));
  });
}

// Like the real one, for a checkpoint of two files.
void FakeRootIo::SurveyForeign(std::string tag, uid_t owner, int32_t chunk_bytes,
                               std::shared_ptr<SurveyProgress> progress,
                               Callback<absl::StatusOr<ForeignSurvey>> done) {
  surveyed = progress;
  survey_owner = owner;
  progress->size_bytes.store(100);
  Run("SurveyForeign", false, [this, tag, owner, chunk_bytes, progress, done = std::move(done)]() mutable {
    if (progress->stop.load()) return done(absl::CancelledError("adopting was called off"));
    if (absl::Status error = ErrorOf("SurveyForeign"); !error.ok()) return done(error);
    if (absl::Status error = ErrorOf("SurveyForeign " + tag); !error.ok()) return done(error);
    const auto finished = disk_->finished.find(tag);
    if (finished == disk_->finished.end())
      return done(MakeError(absl::StatusCode::kFailedPrecondition, "FOREIGN_UNFINISHED", tag));
    ForeignSurvey survey;
    survey.tree.tag = {tag, finished->second};
    survey.tree.size_bytes = 100;
    survey.owner = owner;
    survey.chunk_bytes = chunk_bytes;
    for (const auto& [path, size] : {std::pair("done", 1), std::pair("model.pt", 99)}) {
      storage::v1::FileRecord& file = survey.files.emplace_back();
      file.set_path(path);
      file.set_size_bytes(size);
    }
    progress->read_bytes.store(100);
    done(std::move(survey));
  });
}

void FakeRootIo::Adopt(ForeignSurvey survey, storage::v1::ManifestSummary summary,
                       Callback<PublishResult> done) {
  Run("Adopt", false,
      [this, survey = std::move(survey), summary = std::move(summary), done = std::move(done)]() mutable {
        if (adopt_result.outcome == PublishOutcome::kCommitted) {
          disk_->finished.erase(summary.tag());
          disk_->committed[summary.sequence()].summary = summary;
          Manifest manifest{summary, {}};
          for (const auto& file : survey.files) *manifest.body.add_files() = file;
          disk_->manifests[summary.sequence()] = std::move(manifest);
        }
        PublishResult result = adopt_result;
        result.pointers = Pointers();
        done(std::move(result));
      });
}

std::vector<ForeignTag> FakeRootIo::Foreign() const {
  std::vector<ForeignTag> tags;
  for (const auto& [tag, done_us] : disk_->finished) tags.push_back({tag, done_us});
  std::sort(tags.begin(), tags.end());
  return tags;
}

void FakeRootIo::Rescan(Callback<absl::StatusOr<RootSnapshot>> done) {
  Run("Rescan", false, [this, done = std::move(done)]() mutable {
    if (absl::Status error = ErrorOf("Rescan"); !error.ok()) return done(error);
    read_only_ = false;
    done(Snapshot());
  });
}

}  // namespace ckptd
