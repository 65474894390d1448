#include "tests/sim/sim_disk.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"

namespace ckptd::sim {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

absl::Status Eio(const char* what) { return ErrnoError(EIO, what); }

constexpr int64_t kForeignSize = 4096;  // What one takes on disk.
constexpr int64_t kForeignFile = 100;

SaveName NameOf(int run, const storage::v1::ManifestSummary& summary) {
  return {run, summary.attempt(), summary.tag(), summary.ordinal()};
}

class SimReader : public CheckpointReader {
 public:
  SimReader(Manifest manifest, std::map<std::string, Marks> marks,
            std::shared_ptr<const std::set<std::string>> rotten,
            std::shared_ptr<std::multiset<int64_t>> readers)
      : manifest_(std::move(manifest)),
        marks_(std::move(marks)),
        rotten_(std::move(rotten)),
        readers_(std::move(readers)),
        here_(readers_->insert(manifest_.summary.sequence())) {}
  ~SimReader() override { readers_->erase(here_); }
  const Manifest& manifest() const override { return manifest_; }
  absl::Status Read(const std::string&, int64_t, std::span<std::byte>) override {
    return absl::UnimplementedError("the simulation reads no pieces of files");
  }
  int64_t SizeOf(const std::string& path) const {
    for (const auto& file : manifest_.body.files()) {
      if (file.path() == path) return file.size_bytes();
    }
    return 0;
  }
  // Of one file, whole.
  absl::Status ReadInto(const FileTarget& file) const {
    Marks marks = marks_.at(file.path);
    const absl::Status good = Check(file.path);
    if (!good.ok() && !marks.empty()) marks.back() = ~marks.back();
    WriteMarks(file.runs, marks);
    return good;
  }
  absl::Status Check(const std::string& path) const {
    if (!rotten_->contains(path)) return absl::OkStatus();
    return MakeError(absl::StatusCode::kDataLoss, "CORRUPT_FILE", absl::StrCat(path, " went bad, as planned"),
                     {{"path", path}});
  }

 private:
  Manifest manifest_;
  const std::map<std::string, Marks> marks_;
  const std::shared_ptr<const std::set<std::string>> rotten_;
  const std::shared_ptr<std::multiset<int64_t>> readers_;
  const std::multiset<int64_t>::iterator here_;
};

}  // namespace

namespace {

constexpr int64_t kMarkEvery = 1 << 20;
using Mark = Marks::value_type;

int64_t PlaceOf(size_t mark, int64_t size) {
  return mark + 1 == CountMarks(size) ? size - static_cast<int64_t>(sizeof(Mark))
                                      : static_cast<int64_t>(mark) * kMarkEvery;
}

// Files begin where a page does, so no mark lies in two runs.
template <typename Byte, typename Visit>
void EachMark(const std::vector<std::span<Byte>>& runs, Visit visit) {
  int64_t size = 0;
  for (const auto& run : runs) size += static_cast<int64_t>(run.size());
  int64_t begins = 0;
  size_t mark = 0;
  for (const auto& run : runs) {
    const int64_t ends = begins + static_cast<int64_t>(run.size());
    for (; mark < CountMarks(size) && PlaceOf(mark, size) < ends; ++mark)
      visit(mark, run.data() + (PlaceOf(mark, size) - begins));
    begins = ends;
  }
}

}  // namespace

size_t CountMarks(int64_t size) { return size == 0 ? 0 : static_cast<size_t>((size - 1) / kMarkEvery) + 2; }

void WriteMarks(const std::vector<std::span<std::byte>>& runs, const Marks& marks) {
  EachMark(runs, [&marks](size_t mark, std::byte* at) { std::memcpy(at, &marks.at(mark), sizeof(Mark)); });
}

Marks ReadMarks(const std::vector<std::span<const std::byte>>& runs) {
  Marks marks;
  EachMark(runs,
           [&marks](size_t, const std::byte* at) { std::memcpy(&marks.emplace_back(), at, sizeof(Mark)); });
  return marks;
}

uint64_t Digest(const Marks& marks) {
  uint64_t digest = 0;
  for (const Mark mark : marks) digest = Mix(digest, mark);
  return digest;
}

// ---- SimDisk

int64_t Volume::free_bytes() const {
  int64_t free = capacity;
  for (const SimDisk* root : roots) free -= root->used_bytes();
  return std::max<int64_t>(0, free);
}

int64_t SimDisk::used_bytes() const {
  int64_t used = static_cast<int64_t>(foreign_.size()) * kForeignSize;
  for (const auto& tag : tags_) used += tag.second.bytes;
  for (const auto& dir : inflight_) used += dir.second.found.bytes;
  for (const auto& entry : trash_) used += entry.bytes;
  return used;
}

bool SimDisk::MayGiveRoom(int64_t but_sequence) const {
  return !trash_.empty() || std::any_of(inflight_.begin(), inflight_.end(), [&](const auto& dir) {
    return dir.second.number != 0 && dir.second.sequence != but_sequence;
  });
}

bool SimDisk::Holds(const std::string& tag, int64_t sequence) const {
  auto found = tags_.find(tag);
  return found != tags_.end() && found->second.summary.sequence() >= sequence;
}

bool SimDisk::HasBytes(const std::string& tag) const {
  const auto found = tags_.find(tag);
  return found != tags_.end() && std::any_of(found->second.marks.begin(), found->second.marks.end(),
                                             [](const auto& file) { return !file.second.empty(); });
}

std::string SimDisk::Leftovers() const {
  std::string words;
  for (const auto& dir : inflight_) absl::StrAppend(&words, " in flight ", dir.second.tag);
  for (const auto& entry : trash_) absl::StrAppend(&words, " in trash sequence ", entry.sequence);
  return words;
}

void SimDisk::AddForeign(const std::string& tag, int64_t done_us) {
  if (tags_.contains(tag)) return;
  Foreign& foreign = foreign_[tag];
  foreign.done_us = done_us;
  foreign.version = next_version_++;
  for (const char* path : {"done", "model.pt"}) {
    Marks& marks = foreign.marks[path];
    marks.resize(CountMarks(kForeignFile));
    for (auto& mark : marks) mark = random_.Next();
  }
}

std::vector<std::string> SimDisk::ForeignTags() const {
  std::vector<std::string> tags;
  for (const auto& foreign : foreign_) tags.push_back(foreign.first);
  return tags;
}

void SimDisk::Rot(uint64_t which) {
  std::vector<std::pair<SimDisk::Generation*, std::string>> files;
  for (auto& [tag, generation] : tags_) {
    for (const auto& [path, marks] : generation.marks) {
      if (!marks.empty()) files.emplace_back(&generation, path);
    }
  }
  if (files.empty()) return;
  const auto& [generation, path] = files[which % files.size()];
  generation->rotten->insert(path);
}

Duration SimDisk::Latency(Duration shortest, Duration longest) {
  Duration latency = random_.Spread(shortest, longest);
  if (Hits(faults_.slow)) latency += random_.Spread(milliseconds(20), seconds(4));
  return latency;
}

absl::Status SimDisk::Rename(InflightDir& dir) {
  if (foreign_.contains(dir.tag))
    return MakeError(absl::StatusCode::kAlreadyExists, "TAG_FOREIGN", absl::StrCat(dir.tag, " is not ours"));
  auto old = tags_.find(dir.tag);
  if (old != tags_.end()) {
    if (old->second.pinned)
      return MakeError(absl::StatusCode::kFailedPrecondition, "PINNED", absl::StrCat(dir.tag, " is pinned"));
    if (old->second.summary.sequence() > dir.sequence)
      return MakeError(absl::StatusCode::kFailedPrecondition, "SUPERSEDED",
                       absl::StrCat(dir.tag, " holds a newer generation"));
    trash_.push_back({old->second.summary.sequence(), old->second.bytes});
  }
  dir.found.summary.set_size_bytes(dir.found.bytes);
  tags_[dir.tag] = dir.found;
  oracle_->Published(run_, dir.found.summary, dir.found.contents);
  return absl::OkStatus();
}

std::map<int64_t, SimDisk::InflightDir>::iterator SimDisk::Find(int64_t number) {
  return std::find_if(inflight_.begin(), inflight_.end(),
                      [&](const auto& dir) { return dir.second.number == number; });
}

void SimDisk::Recover(std::vector<RecoveredSave>* recovered) {
  std::map<int64_t, int64_t> left;  // By sequence.
  for (const auto& dir : inflight_) {
    if (dir.second.number == 0) left[dir.second.sequence] = dir.first;
  }
  for (const auto& [sequence, at] : left) {
    InflightDir& dir = inflight_.at(at);
    const auto& parts = dir.found.parts;
    const bool complete =
        !parts.empty() && static_cast<int>(dir.recorded.size()) == parts[0].checkpoint().world_size();
    RecoveredSave save{dir.tag, sequence, false, "a part is missing"};
    if (complete) {
      dir.found.summary = parts[0].checkpoint();
      const auto old = tags_.find(dir.tag);
      const int64_t before = old == tags_.end() ? 0 : old->second.summary.sequence();
      const absl::Status renamed = Rename(dir);
      if (renamed.ok() && before != 0) oracle_->Unheard(run_, before);
      save.published = renamed.ok();
      save.why = renamed.ok() ? "complete" : std::string(renamed.message());
    }
    if (!save.published) trash_.push_back({sequence, dir.found.bytes});
    inflight_.erase(at);
    recovered->push_back(std::move(save));
  }
}

absl::StatusOr<RootSnapshot> SimDisk::Scan(std::vector<RecoveredSave> recovered) {
  RootSnapshot snapshot;
  snapshot.probe.file_system = "simulated";
  snapshot.probe.io_backend = "threads";
  snapshot.probe.free_bytes = free_bytes();
  int64_t highest = record_.last_sequence();
  for (const auto& tag : tags_) {
    const int64_t sequence = tag.second.summary.sequence();
    snapshot.committed[sequence] = {tag.second.summary, tag.second.pinned, tag.second.damage};
    highest = std::max(highest, sequence);
  }
  for (const auto& entry : trash_) {
    snapshot.trash_bytes += entry.bytes;
    highest = std::max(highest, entry.sequence);
  }
  for (const RecoveredSave& save : recovered) highest = std::max(highest, save.sequence);
  for (const auto& [tag, foreign] : foreign_) snapshot.foreign.push_back({tag, foreign.done_us});
  std::sort(snapshot.foreign.begin(), snapshot.foreign.end());
  snapshot.recovered = std::move(recovered);
  snapshot.run_record = record_;
  snapshot.highest_sequence = highest;
  return snapshot;
}

// ---- SimRootIo

SimRootIo::~SimRootIo() {
  // Of what was under way, each worker's may have been done.
  for (Worker* worker : {&metadata_, &questions_, &reading_}) {
    if (worker->running != nullptr && disk_->random_.Percent(50)) (void)(*worker->running)();
  }
  for (const auto& write : writes_) disk_->oracle_->EndUse(write->use);
  for (const int64_t use : read_uses_) disk_->oracle_->EndUse(use);
  for (auto& dir : disk_->inflight_) dir.second.number = 0;
}

std::optional<Instant> SimRootIo::pending_since() const {
  std::optional<Instant> since;
  auto add = [&since](Instant began) { since = since ? std::min(*since, began) : began; };
  for (const Worker* worker : {&metadata_, &questions_, &reading_}) {
    if (worker->running != nullptr) add(worker->since);
  }
  for (const auto& write : writes_) add(write->since);
  return since;
}

template <typename T, typename Work>
void SimRootIo::Ask(Worker& worker, Duration latency, Callback<T> done, Work work) {
  worker.waiting.emplace_back(
      latency, [done = std::move(done), work = std::move(work)]() mutable -> absl::AnyInvocable<void()> {
        return [done = std::move(done), result = work()]() mutable { done(std::move(result)); };
      });
  if (worker.running == nullptr) RunNext(worker);
}

void SimRootIo::RunNext(Worker& worker) {
  if (worker.waiting.empty()) return;
  auto [latency, operation] = std::move(worker.waiting.front());
  worker.waiting.pop_front();
  worker.running = std::make_shared<Operation>(std::move(operation));
  worker.since = disk_->schedule_->clock().Now();
  if (disk_->faulty_) latency += std::max(Duration::zero(), disk_->hangs_until_ - worker.since);
  disk_->schedule_->After(latency, [this, &worker, alive = std::weak_ptr<char>(alive_)] {
    if (alive.expired()) return;
    auto tell = (*worker.running)();
    worker.running = nullptr;
    RunNext(worker);
    tell();
  });
}

absl::Status SimRootIo::Writable() const {
  if (!latched_) return absl::OkStatus();
  return MakeError(absl::StatusCode::kFailedPrecondition, "ROOT_READ_ONLY", "until it is scanned anew");
}

void SimRootIo::Open(Callback<absl::StatusOr<RootSnapshot>> done) {
  Ask(metadata_, disk_->Latency(milliseconds(1), milliseconds(50)), std::move(done),
      [this]() -> absl::StatusOr<RootSnapshot> {
        if (disk_->schedule_->clock().Now() < disk_->locked_until_) {
          return MakeError(absl::StatusCode::kFailedPrecondition, "ROOT_LOCKED", "a dying daemon has it");
        }
        // Recovery stops where it cannot read: before it has begun, or when it has published what it could.
        const bool fails = Hits(disk_->faults_.read);
        if (fails && disk_->random_.Percent(50)) return Eio("listing the root");
        std::vector<RecoveredSave> recovered;
        disk_->Recover(&recovered);
        if (fails) return Eio("reading the manifests");
        return disk_->Scan(std::move(recovered));
      });
}

void SimRootIo::CheckTarget(std::string tag, std::vector<std::string>, Callback<absl::Status> done) {
  Ask(questions_, disk_->Latency(microseconds(20), milliseconds(1)), std::move(done),
      [this, tag = std::move(tag)]() -> absl::Status {
        if (Hits(disk_->faults_.read)) return Eio("looking at the tag");
        if (!disk_->foreign_.contains(tag)) return absl::OkStatus();
        return MakeError(absl::StatusCode::kAlreadyExists, "TAG_FOREIGN", absl::StrCat(tag, " is not ours"));
      });
}

void SimRootIo::FreeBytes(Callback<absl::StatusOr<int64_t>> done) {
  Ask(questions_, disk_->Latency(microseconds(20), milliseconds(1)), std::move(done),
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
                          [this, write, alive = std::weak_ptr<char>(alive_)] {
                            if (!alive.expired()) StartWrite(write);
                          });
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
    status = absl::NotFoundError("nothing in flight");
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
  // Who was admitted has room: nothing else uses this disk.
  if (!status.ok() && ReasonOf(status) != "NO_SPACE") disk_->oracle_->Excuse(name);
  disk_->schedule_->After(latency, [this, write, status, name, alive = std::weak_ptr<char>(alive_)] {
    if (alive.expired()) return;
    for (const FileImage& file : write->files) {
      if (status.ok() && write->contents.at(file.path) != Digest(file.runs)) {
        disk_->oracle_->Violated(absl::StrCat("the memory of rank ", write->record.rank(), " of ",
                                              name.Words(), " changed while it was written"));
      }
    }
    disk_->oracle_->EndUse(write->use);
    if (!status.ok()) {
      writes_.erase(write);
      return write->done(status);
    }
    EndWrite(write);
  });
}

// The files are synced; now the record, which makes it so.
void SimRootIo::EndWrite(std::shared_ptr<Write> write) {
  using Result = absl::StatusOr<storage::v1::PartRecord>;
  Ask(metadata_, disk_->Latency(microseconds(200), milliseconds(5)),
      Callback<Result>([write](Result result) { write->done(std::move(result)); }),
      [this, write]() -> Result {
        writes_.erase(write);
        auto dir = disk_->Find(write->id);
        if (dir == disk_->inflight_.end()) return absl::NotFoundError("nothing in flight");
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
        if (dir == disk_->inflight_.end()) return failed(absl::NotFoundError("nothing in flight"));
        if (Hits(disk_->faults_.publish)) return failed(Eio("writing the manifest"));
        dir->second.found.summary = summary;
        if (absl::Status renamed = disk_->Rename(dir->second); !renamed.ok()) return failed(renamed);
        disk_->inflight_.erase(dir);
        if (!Hits(disk_->faults_.indeterminate)) return {PublishOutcome::kCommitted, absl::OkStatus()};
        latched_ = true;
        disk_->oracle_->Excuse(name);
        return {PublishOutcome::kIndeterminate, Eio("syncing the root")};
      });
}

void SimRootIo::Discard(InflightId64 id, Callback<absl::Status> done) {
  Ask(metadata_, disk_->Latency(microseconds(200), milliseconds(5)), std::move(done),
      [this, id]() -> absl::Status {
        if (absl::Status writable = Writable(); !writable.ok()) return writable;
        auto dir = disk_->Find(id);
        if (dir == disk_->inflight_.end()) return absl::NotFoundError("nothing in flight");
        dir->second.number = 0;  // The next scan decides, unless it is gone.
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
          disk_->oracle_->Violated(absl::StrCat("retention asks for ", tag, ", which is pinned"));
          return MakeError(absl::StatusCode::kFailedPrecondition, "PINNED", tag);
        }
        const bool fails = Hits(disk_->faults_.evict);
        if (fails && disk_->random_.Percent(50)) return Eio("renaming to trash");
        disk_->trash_.push_back({sequence, victim->second.bytes});
        const bool pinned = victim->second.pinned;
        disk_->tags_.erase(victim);
        std::vector<int64_t> left;
        for (const auto& other : disk_->tags_) {
          if (!other.second.damage) left.push_back(other.second.summary.sequence());
        }
        disk_->oracle_->Evicted(disk_->run_, sequence, left, pinned);
        if (!fails) return absl::OkStatus();
        latched_ = true;
        return Eio("syncing the root");
      });
}

void SimRootIo::EmptyTrash(Callback<absl::StatusOr<int64_t>> done) { EmptyStep(std::move(done)); }

// One entry at a time, behind what else there is to do.
void SimRootIo::EmptyStep(Callback<absl::StatusOr<int64_t>> done) {
  const std::optional<int64_t> more = -1;
  Ask(metadata_, disk_->Latency(microseconds(100), milliseconds(20)),
      Callback<absl::StatusOr<int64_t>>(
          [this, more, done = std::move(done)](absl::StatusOr<int64_t> left) mutable {
            if (left.ok() && *left == *more) return EmptyStep(std::move(done));
            done(std::move(left));
          }),
      [this, more]() -> absl::StatusOr<int64_t> {
        if (absl::Status writable = Writable(); !writable.ok()) return writable;
        if (Hits(disk_->faults_.trash)) return Eio("removing");
        auto& trash = disk_->trash_;
        auto next = std::find_if(trash.begin(), trash.end(),
                                 [&](const auto& entry) { return !readers_->contains(entry.sequence); });
        if (next != trash.end()) {
          disk_->oracle_->TrashRemoved(disk_->run_, next->sequence);
          trash.erase(next);
          return *more;
        }
        int64_t left = 0;
        for (const auto& entry : trash) left += entry.bytes;
        return left;
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
            disk_->oracle_->Unheard(disk_->run_, outcome.sequence());
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

void SimRootIo::SetDamage(std::string tag, int64_t sequence, std::optional<storage::v1::Damage> damage,
                          Callback<absl::StatusOr<PointerFiles>> done) {
  Ask(metadata_, disk_->Latency(microseconds(200), milliseconds(5)), std::move(done),
      [this, tag = std::move(tag), sequence, damage = std::move(damage)]() -> absl::StatusOr<PointerFiles> {
        if (absl::Status writable = Writable(); !writable.ok()) return writable;
        auto found = disk_->tags_.find(tag);
        if (found == disk_->tags_.end() || found->second.summary.sequence() != sequence)
          return MakeError(absl::StatusCode::kNotFound, "NO_CHECKPOINT", tag);
        if (damage) disk_->oracle_->Condemned(disk_->run_, sequence);
        if (Hits(disk_->faults_.pin)) return Eio("writing the damages");
        found->second.damage = damage;
        return PointerFiles();
      });
}

void SimRootIo::OpenCheckpoint(std::string tag, int64_t sequence,
                               Callback<absl::StatusOr<std::shared_ptr<CheckpointReader>>> done) {
  Ask(metadata_, disk_->Latency(microseconds(100), milliseconds(2)), std::move(done),
      [this, tag = std::move(tag), sequence]() -> absl::StatusOr<std::shared_ptr<CheckpointReader>> {
        auto found = disk_->tags_.find(tag);
        if (found == disk_->tags_.end() || found->second.summary.sequence() != sequence)
          return MakeError(absl::StatusCode::kNotFound, "NO_CHECKPOINT", absl::StrCat("no ", tag));
        if (Hits(disk_->faults_.open)) return Eio("reading the manifest");
        Manifest manifest;
        manifest.summary = found->second.summary;
        for (const auto& part : found->second.parts) {
          for (const auto& file : part.files()) *manifest.body.add_files() = file;
        }
        ++disk_->opened_;
        return std::make_shared<SimReader>(std::move(manifest), found->second.marks, found->second.rotten,
                                           readers_);
      });
}

void SimRootIo::ReadBack(std::shared_ptr<CheckpointReader> reader, std::string path, int64_t, int64_t,
                         Callback<absl::Status> done) {
  const bool fails = Hits(disk_->faults_.open);
  disk_->schedule_->After(
      disk_->Latency(microseconds(100), milliseconds(200)),
      [this, fails, path = std::move(path), reader = std::move(reader), done = std::move(done),
       alive = std::weak_ptr<char>(alive_)]() mutable {
        const absl::Status read =
            fails ? Eio("reading back") : static_cast<const SimReader&>(*reader).Check(path);
        const storage::v1::ManifestSummary summary = reader->manifest().summary;
        reader.reset();
        if (alive.expired()) return;
        if (absl::IsDataLoss(read) && !fails)
          disk_->oracle_->DamageFound(disk_->run_, summary.tag(), summary.sequence(), latched_);
        done(read);
      });
}

void SimRootIo::ReadFiles(std::shared_ptr<CheckpointReader> reader, std::vector<FileTarget> files,
                          Callback<absl::Status> done) {
  const storage::v1::ManifestSummary summary = reader->manifest().summary;
  std::vector<std::span<const std::byte>> memory;
  for (const FileTarget& file : files) {
    for (const auto& run : file.runs) {
      if (disk_->oracle_->InUse(run.data(), static_cast<int64_t>(run.size())))
        disk_->oracle_->Violated(absl::StrCat(summary.tag(), " is read into memory that an I/O uses"));
      memory.emplace_back(run);
    }
    // The first bytes come at once.
    Marks torn(CountMarks(static_cast<const SimReader&>(*reader).SizeOf(file.path)));
    WriteMarks(file.runs, torn);
  }
  const int64_t use = *read_uses_.insert(disk_->oracle_->BeginUse(std::move(memory), disk_->run_)).first;
  const auto rotten = std::make_shared<bool>(false);
  Ask(reading_, disk_->Latency(milliseconds(1), milliseconds(500)),
      Callback<absl::Status>([this, summary, rotten, use, done = std::move(done)](absl::Status read) mutable {
        disk_->oracle_->EndUse(use);
        read_uses_.erase(use);
        if (*rotten) disk_->oracle_->DamageFound(disk_->run_, summary.tag(), summary.sequence(), latched_);
        done(std::move(read));
      }),
      [this, rotten, reader = std::move(reader), files = std::move(files)]() mutable -> absl::Status {
        absl::Status read;
        if (Hits(disk_->faults_.open)) read = Eio("reading");
        for (const FileTarget& file : files) {
          if (!read.ok()) break;
          read = static_cast<const SimReader&>(*reader).ReadInto(file);
          *rotten = !read.ok();
        }
        reader.reset();
        return read;
      });
}

void SimRootIo::ListForeign(Callback<absl::StatusOr<std::vector<ForeignCheckpoint>>> done) {
  using Result = absl::StatusOr<std::vector<ForeignCheckpoint>>;
  Ask(reading_, disk_->Latency(microseconds(20), milliseconds(100)), std::move(done), [this]() -> Result {
    if (Hits(disk_->faults_.open)) return Eio("listing the root");
    std::vector<ForeignCheckpoint> found;
    for (const auto& [tag, foreign] : disk_->foreign_)
      found.push_back({{tag, foreign.done_us}, kForeignSize, static_cast<int32_t>(foreign.marks.size())});
    std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.tag < b.tag; });
    return found;
  });
}

void SimRootIo::SurveyForeign(std::string tag, uid_t owner, int32_t chunk_bytes,
                              std::shared_ptr<SurveyProgress> progress,
                              Callback<absl::StatusOr<ForeignSurvey>> done) {
  using Result = absl::StatusOr<ForeignSurvey>;
  Ask(reading_, disk_->Latency(milliseconds(1), seconds(2)),
      Callback<Result>([this, tag, done = std::move(done)](Result result) mutable {
        beside_[tag].clear();
        for (const auto& entry : disk_->tags_) beside_[tag].push_back(entry.second.summary);
        done(std::move(result));
      }),
      [this, tag, owner, chunk_bytes, progress = std::move(progress)]() -> Result {
        if (progress->stop.load()) return absl::CancelledError("called off");
        const auto found = disk_->foreign_.find(tag);
        if (found == disk_->foreign_.end())
          return MakeError(absl::StatusCode::kNotFound, "NO_CHECKPOINT", tag);
        if (Hits(disk_->faults_.open)) return Eio("reading a checkpoint of another program");
        ForeignSurvey survey;
        survey.tree.tag = {tag, found->second.done_us};
        survey.tree.directory.inode = static_cast<uint64_t>(found->second.version);
        survey.tree.size_bytes = kForeignSize;
        survey.owner = owner;
        survey.chunk_bytes = chunk_bytes;
        for (const auto& [path, marks] : found->second.marks) {
          storage::v1::FileRecord& file = survey.files.emplace_back();
          file.set_path(path);
          file.set_size_bytes(kForeignFile);
          const uint64_t digest = Digest(marks);
          file.add_chunk_crc32c(static_cast<uint32_t>(digest));
          file.add_chunk_crc32c(static_cast<uint32_t>(digest >> 32));
        }
        progress->read_bytes.store(kForeignSize);
        return survey;
      });
}

// One rename, which is done or not when the daemon dies.
void SimRootIo::Adopt(ForeignSurvey survey, storage::v1::ManifestSummary summary,
                      Callback<PublishResult> done) {
  Ask(metadata_, disk_->Latency(microseconds(500), milliseconds(10)), std::move(done),
      [this, survey = std::move(survey), summary = std::move(summary)]() -> PublishResult {
        const std::string& tag = summary.tag();
        auto failed = [](absl::Status status) {
          return PublishResult{PublishOutcome::kFailed, std::move(status)};
        };
        if (absl::Status writable = Writable(); !writable.ok()) return failed(writable);
        const auto found = disk_->foreign_.find(tag);
        if (found == disk_->foreign_.end() ||
            found->second.version != static_cast<int64_t>(survey.tree.directory.inode))
          return failed(MakeError(absl::StatusCode::kAborted, "FOREIGN_CHANGED", tag));
        if (Hits(disk_->faults_.publish)) return failed(Eio("writing the manifest"));
        SimDisk::Generation& ours = disk_->tags_[tag];
        ours.summary = summary;
        ours.bytes = kForeignSize;
        storage::v1::PartRecord& part = ours.parts.emplace_back();
        *part.mutable_checkpoint() = summary;
        for (const auto& file : survey.files) *part.add_files() = file;
        for (const auto& [path, marks] : found->second.marks) ours.contents[0][path] = Digest(marks);
        ours.marks = std::move(found->second.marks);
        disk_->foreign_.erase(found);
        disk_->oracle_->Adopted(disk_->run_, summary, ours.contents[0], beside_[tag]);
        if (!Hits(disk_->faults_.indeterminate)) return {PublishOutcome::kCommitted, absl::OkStatus()};
        latched_ = true;
        return {PublishOutcome::kIndeterminate,
                MakeError(absl::StatusCode::kUnknown, "INDETERMINATE", "syncing after the rename")};
      });
}

void SimRootIo::CheckImages(std::vector<FileImage> images, std::vector<storage::v1::FileRecord> records,
                            int32_t, Callback<absl::Status> done) {
  std::vector<std::span<const std::byte>> memory;
  for (const FileImage& image : images) memory.insert(memory.end(), image.runs.begin(), image.runs.end());
  const int64_t use = disk_->oracle_->BeginUse(std::move(memory), disk_->run_, 0, 0);
  disk_->schedule_->After(
      disk_->Latency(microseconds(100), milliseconds(5)),
      [this, use, images = std::move(images), records = std::move(records), done = std::move(done),
       alive = std::weak_ptr<char>(alive_)]() mutable {
        if (alive.expired()) return;
        disk_->oracle_->EndUse(use);
        for (size_t i = 0; i < images.size(); ++i) {
          const uint64_t digest = Digest(images[i].runs);
          if (static_cast<uint32_t>(digest) == records[i].chunk_crc32c(0) &&
              static_cast<uint32_t>(digest >> 32) == records[i].chunk_crc32c(1)) {
            continue;
          }
          disk_->oracle_->Violated(absl::StrCat("the copy of ", images[i].path, " has changed"));
        }
        done(absl::OkStatus());
      });
}

void SimRootIo::Rescan(Callback<absl::StatusOr<RootSnapshot>> done) {
  Ask(metadata_, disk_->Latency(milliseconds(1), milliseconds(50)), std::move(done),
      [this]() -> absl::StatusOr<RootSnapshot> {
        if (Hits(disk_->faults_.rescan)) return Eio("scanning");
        std::vector<RecoveredSave> recovered;
        disk_->Recover(&recovered);
        latched_ = false;
        return disk_->Scan(std::move(recovered));
      });
}

}  // namespace ckptd::sim
