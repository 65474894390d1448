// SimSharedFiles: the requests of one daemon, in order, with their times and faults.
#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"
#include "storage/commit/shared/shared_scan.h"
#include "tests/sim_nodes/shared_disk.h"

namespace ckptd::sim_nodes {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

absl::Status NotAsked() { return absl::UnimplementedError("nothing asks for this in the simulation"); }

absl::Status NoCheckpoint(const std::string& tag) {
  return MakeError(absl::StatusCode::kNotFound, reason::kNoCheckpoint, absl::StrCat("no ", tag));
}

class Reader : public CheckpointReader {
 public:
  explicit Reader(SharedDisk::CheckpointPtr checkpoint) {
    manifest_.summary = checkpoint->summary;
    for (const SharedDisk::Part& part : checkpoint->parts) {
      for (const auto& file : part.record.files()) *manifest_.body.add_files() = file;
    }
  }
  const Manifest& manifest() const override { return manifest_; }
  absl::Status Read(const std::string&, int64_t, std::span<std::byte>) override { return NotAsked(); }

 private:
  Manifest manifest_;
};

}  // namespace

SimSharedFiles::SimSharedFiles(SharedDisk* disk, Pause* pause, std::string node, std::string incarnation)
    : disk_(*disk), pause_(pause), node_(std::move(node)), incarnation_(std::move(incarnation)) {}

// The daemon has died: the request under way is carried out or not.
SimSharedFiles::~SimSharedFiles() {
  scope_.End();
  if (running_ != nullptr && disk_.random_.Percent(50)) (void)(*running_)();
}

// ---- requests

template <typename T>
void SimSharedFiles::Ask(Duration latency, Callback<T> done, absl::AnyInvocable<T()> work) {
  waiting_.emplace_back(
      latency, [done = std::move(done), work = std::move(work)]() mutable -> absl::AnyInvocable<void()> {
        return [done = std::move(done), result = work()]() mutable { done(std::move(result)); };
      });
  if (running_ == nullptr) RunNext();
}

void SimSharedFiles::RunNext() {
  if (waiting_.empty()) return;
  auto [latency, request] = std::move(waiting_.front());
  waiting_.pop_front();
  running_ = std::make_shared<Request>(std::move(request));
  running_since_ = disk_.schedule_->clock().Now();
  Later(latency + disk_.Hang(node_), [this] {
    running_since_.reset();
    auto tell = (*std::exchange(running_, nullptr))();
    Later(disk_.random_.Spread(microseconds(10), milliseconds(5)), std::move(tell));
    RunNext();
  });
}

void SimSharedFiles::Later(Duration delay, absl::AnyInvocable<void()> event) {
  disk_.schedule_->After(delay, scope_.Guard([this, event = scope_.Guard(std::move(event))]() mutable {
    pause_->Deliver(std::move(event));
  }));
}

// ---- the root

CommittedCheckpoint SimSharedFiles::Describe(const SharedDisk::Checkpoint& checkpoint) const {
  CommittedCheckpoint described;
  described.summary = checkpoint.summary;
  const auto damages = Damages();
  if (const auto damage = damages.find(checkpoint.summary.sequence()); damage != damages.end())
    described.damage = damage->second;
  described.pinned = Pinned().contains(checkpoint.summary.sequence());
  return described;
}

// The pins of the root, changed by those that this daemon was told.
std::set<int64_t> SimSharedFiles::Pinned() const {
  std::set<int64_t> pinned = pin_record_;
  for (const auto& [sequence, is_pinned] : pins_) {
    if (is_pinned) pinned.insert(sequence);
    if (!is_pinned) pinned.erase(sequence);
  }
  return pinned;
}

// The marks of the root, changed by those that this daemon was told.
std::map<int64_t, storage::v1::Damage> SimSharedFiles::Damages() const {
  std::map<int64_t, storage::v1::Damage> damages = record_;
  for (const auto& [sequence, damage] : damage_) {
    damages.erase(sequence);
    if (damage) damages[sequence] = *damage;
  }
  return damages;
}

// The coordinator alone writes it.
void SimSharedFiles::RecordMarks() {
  if (!coordinates_ || !disk_.faults_.has_records || !std::exchange(record_is_old_, false)) return;
  for (const auto& [sequence, damage] : damage_) {
    disk_.record_.erase(sequence);
    if (damage) disk_.record_[sequence] = *damage;
  }
  record_ = disk_.record_;
  disk_.pin_record_ = Pinned();
  pin_record_ = disk_.pin_record_;
}

// The coordinator alone writes them.
PointerFiles SimSharedFiles::UpdatePointers(const SharedDisk::Names& view) {
  if (!coordinates_) return PointerFiles{.known = false};
  pointers_ = disk_.UpdatePointers(view.tags, Damages());
  return *pointers_;
}

absl::StatusOr<RootSnapshot> SimSharedFiles::Scan() {
  if (disk_.Hits(disk_.faults_.scan)) return ErrnoError(EIO, "listing the root");
  const SharedDisk::Names view = disk_.View(node_);
  record_ = disk_.record_;
  pin_record_ = disk_.pin_record_;
  RootSnapshot snapshot;
  snapshot.probe.file_system = "simulated";
  snapshot.probe.io_backend = "threads";
  const auto found = [&snapshot](int64_t sequence) {
    snapshot.highest_sequence = std::max(snapshot.highest_sequence, sequence);
  };
  for (const auto& [tag, checkpoint] : view.tags) {
    snapshot.committed[checkpoint->summary.sequence()] = Describe(*checkpoint);
    found(checkpoint->summary.sequence());
  }
  for (const auto& [tag, sequence] : view.half_removed)
    snapshot.half_removed.push_back({tag, sequence, disk_.removed_.at(sequence)->inode});
  for (const auto* sequences : {&view.half_removed, &view.inflight, &view.trash}) {
    for (const auto& [name, sequence] : *sequences) found(sequence);
  }
  if (disk_.faults_.has_records) snapshot.highest_term = disk_.highest_term_;
  snapshot.pointers = UpdatePointers(view);
  RecordMarks();
  return snapshot;
}

void SimSharedFiles::Open(Callback<absl::StatusOr<RootSnapshot>> done) {
  Ask<absl::StatusOr<RootSnapshot>>(disk_.Latency(milliseconds(1), milliseconds(50)), std::move(done),
                                    [this] { return Scan(); });
}

void SimSharedFiles::Rescan(Callback<absl::StatusOr<RootSnapshot>> done) { Open(std::move(done)); }

void SimSharedFiles::RunId(Callback<absl::StatusOr<RunOfRoot>> done) {
  Ask<absl::StatusOr<RunOfRoot>>(disk_.Latency(microseconds(100), milliseconds(2)), std::move(done), [] {
    return RunOfRoot{kRunId, 7, 1000};
  });
}

void SimSharedFiles::CheckTarget(std::string tag, std::vector<std::string>, Callback<absl::Status> done) {
  Ask<absl::Status>(disk_.Latency(microseconds(20), milliseconds(1)), std::move(done), [this, tag] {
    if (disk_.foreign_.contains(tag))
      return MakeError(absl::StatusCode::kAlreadyExists, reason::kTagForeign, "another program's directory");
    const auto found = disk_.names_.tags.find(tag);
    if (found == disk_.names_.tags.end() || !Pinned().contains(found->second->summary.sequence()))
      return absl::OkStatus();
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kPinned,
                     "the tag's checkpoint is pinned");
  });
}

void SimSharedFiles::FreeBytes(Callback<absl::StatusOr<int64_t>> done) {
  Ask<absl::StatusOr<int64_t>>(disk_.Latency(microseconds(20), milliseconds(1)), std::move(done),
                               [] { return int64_t{1} << 40; });
}

// Not one of the metadata worker's requests, behind which others wait. The file system gives what nodes need.
void SimSharedFiles::TryNodes(NodesToTry, Callback<absl::StatusOr<NodesTried>> done) {
  Later(disk_.Latency(milliseconds(100), std::chrono::seconds(5)),
        [done = std::move(done)]() mutable { done(NodesTried()); });
}

// ---- this node's part

void SimSharedFiles::OpenPart(InflightId64 id, const std::string&, int64_t, const std::string& inflight,
                              Callback<absl::Status> done) {
  Ask<absl::Status>(disk_.Latency(microseconds(200), milliseconds(5)), std::move(done), [this, id, inflight] {
    // If the directory was moved to the trash, the save has ended.
    if (!disk_.names_.inflight.contains(inflight))
      return ErrnoError(ENOENT, absl::StrCat("the directory ", inflight));
    parts_[id].inflight = inflight;
    return absl::OkStatus();
  });
}

void SimSharedFiles::WritePart(InflightId64 id, storage::v1::PartRecord record, std::vector<FileImage> files,
                               std::shared_ptr<CheckpointReader> /*base*/,
                               std::shared_ptr<std::atomic<int64_t>> written_bytes,
                               Callback<absl::StatusOr<storage::v1::PartRecord>> done) {
  ++writing_;
  Later(disk_.Latency(microseconds(100), milliseconds(3)), [this, id, record = std::move(record),
                                                            files = std::move(files), written_bytes,
                                                            done = std::move(done)]() mutable {
    SharedDisk::Part part;
    for (const FileImage& image : files) part.contents[image.path] = sim::Digest(image.runs);
    const bool fails = disk_.Hits(disk_.faults_.write);
    const Duration latency = disk_.Latency(milliseconds(1), milliseconds(200)) + disk_.Hang(node_);
    Later(latency, [this, id, fails, part = std::move(part), record = std::move(record),
                    files = std::move(files), written_bytes, done = std::move(done)]() mutable {
      --writing_;
      if (fails) {
        disk_.oracle_->Fault();
        return done(ErrnoError(EIO, "writing"));
      }
      for (const FileImage& image : files) {
        if (part.contents.at(image.path) != sim::Digest(image.runs)) {
          disk_.oracle_->Violated(absl::StrCat("the memory of rank ", record.rank(), " of sequence ",
                                               record.sequence(), " changed while it was being written"));
        }
        storage::v1::FileRecord& file = *record.add_files();
        file.set_path(image.path);
        file.set_size_bytes(image.size);
        file.set_rank(record.rank());
        *written_bytes += image.size;
      }
      part.record = std::move(record);
      EndWrite(id, std::move(part), std::move(done));
    });
  });
}

void SimSharedFiles::EndWrite(InflightId64 id, SharedDisk::Part part,
                              Callback<absl::StatusOr<storage::v1::PartRecord>> done) {
  const auto opened = parts_.find(id);
  if (opened == parts_.end()) return done(absl::NotFoundError("no such part"));
  storage::v1::PartRecord record = part.record;
  opened->second.written[record.rank()] = std::move(part);
  done(std::move(record));
}

// If the directory was moved to the trash meanwhile, the record is written there.
void SimSharedFiles::FinishPart(InflightId64 id, std::vector<storage::v1::PartRecord> parts,
                                Callback<absl::StatusOr<std::string>> done) {
  Ask<absl::StatusOr<std::string>>(disk_.Latency(microseconds(200), milliseconds(5)), std::move(done),
                                   [this, id, parts = std::move(parts)]() -> absl::StatusOr<std::string> {
                                     const auto opened = parts_.find(id);
                                     if (opened == parts_.end()) return absl::NotFoundError("no such part");
                                     std::vector<SharedDisk::Part> record;
                                     uint64_t digest = sim::Mix(incarnation_);
                                     for (const storage::v1::PartRecord& part : parts) {
                                       const auto written = opened->second.written.find(part.rank());
                                       if (written == opened->second.written.end())
                                         return absl::NotFoundError("a rank has no part");
                                       record.push_back(written->second);
                                       for (const auto& [path, bytes] : written->second.contents)
                                         digest = sim::Mix(digest, sim::Mix(sim::Mix(path), bytes));
                                     }
                                     const std::string name = absl::StrCat(node_, ".", digest);
                                     disk_.records_[opened->second.inflight][name] = std::move(record);
                                     parts_.erase(opened);
                                     return name;
                                   });
}

void SimSharedFiles::Discard(InflightId64 id, Callback<absl::Status> done) {
  Ask<absl::Status>(disk_.Latency(microseconds(20), milliseconds(1)), std::move(done), [this, id] {
    parts_.erase(id);
    return absl::OkStatus();
  });
}

// ---- checkpoints

// The real implementation repeats the call for as long as names may be old, and a little longer.
void SimSharedFiles::LoadCheckpoint(const std::string& tag, int64_t sequence,
                                    Callback<absl::StatusOr<LoadedCheckpoint>> done) {
  Duration latency = disk_.Latency(microseconds(200), milliseconds(5));
  if (disk_.Hits(disk_.faults_.stale)) latency += disk_.random_.Spread(milliseconds(100), kStaleness);
  Ask<absl::StatusOr<LoadedCheckpoint>>(
      latency, std::move(done), [this, tag, sequence]() -> absl::StatusOr<LoadedCheckpoint> {
        if (disk_.Hits(disk_.faults_.open)) return ErrnoError(EIO, "reading the manifest");
        const auto found = disk_.names_.tags.find(tag);
        if (found == disk_.names_.tags.end() || found->second->summary.sequence() != sequence)
          return NoCheckpoint(tag);
        return LoadedCheckpoint{Describe(*found->second), UpdatePointers(disk_.names_)};
      });
}

void SimSharedFiles::OpenCheckpoint(std::string tag, int64_t sequence,
                                    Callback<absl::StatusOr<std::shared_ptr<CheckpointReader>>> done) {
  using Opened = absl::StatusOr<std::shared_ptr<CheckpointReader>>;
  Duration latency = disk_.Latency(microseconds(200), milliseconds(5));
  if (disk_.Hits(disk_.faults_.stale)) latency += disk_.random_.Spread(milliseconds(100), kStaleness);
  Ask<Opened>(latency, std::move(done), [this, tag = std::move(tag), sequence]() -> Opened {
    if (disk_.Hits(disk_.faults_.open)) return ErrnoError(EIO, "reading the manifest");
    const auto found = disk_.names_.tags.find(tag);
    if (found == disk_.names_.tags.end() || found->second->summary.sequence() != sequence)
      return NoCheckpoint(tag);
    return std::make_shared<Reader>(found->second);
  });
}

void SimSharedFiles::SetDamage(std::string, int64_t sequence, std::optional<storage::v1::Damage> damage,
                               Callback<absl::StatusOr<PointerFiles>> done) {
  Ask<absl::StatusOr<PointerFiles>>(disk_.Latency(microseconds(200), milliseconds(5)), std::move(done),
                                    [this, sequence, damage = std::move(damage)] {
                                      damage_[sequence] = damage;
                                      record_is_old_ = true;
                                      PointerFiles pointers = UpdatePointers(disk_.names_);
                                      RecordMarks();
                                      return pointers;
                                    });
}

void SimSharedFiles::SetPinned(std::string, int64_t sequence, bool pinned, Callback<absl::Status> done) {
  Ask<absl::Status>(disk_.Latency(microseconds(200), milliseconds(5)), std::move(done),
                    [this, sequence, pinned] {
                      pins_[sequence] = pinned;
                      record_is_old_ = true;
                      RecordMarks();
                      return absl::OkStatus();
                    });
}

void SimSharedFiles::ReleasePointers(std::string, int64_t, Callback<absl::StatusOr<PointerFiles>> done) {
  Ask<absl::StatusOr<PointerFiles>>(disk_.Latency(microseconds(200), milliseconds(5)), std::move(done),
                                    [] { return PointerFiles(); });
}

void SimSharedFiles::CheckImages(std::vector<FileImage>, std::vector<storage::v1::FileRecord>, int32_t,
                                 Callback<absl::Status> done) {
  Ask<absl::Status>(disk_.Latency(microseconds(100), milliseconds(5)), std::move(done),
                    [] { return absl::OkStatus(); });
}

// ---- as the coordinator

void SimSharedFiles::BeginTerm(int64_t term, Callback<absl::Status> done) {
  Ask<absl::Status>(disk_.Latency(microseconds(200), milliseconds(5)), std::move(done), [this, term] {
    if (term < disk_.first_term_) {
      disk_.oracle_->Violated(absl::StrCat(node_, " begins term ", term, ", and the root has seen term ",
                                           disk_.first_term_ - 1, " before all daemons had ended"));
    }
    disk_.highest_term_ = std::max(disk_.highest_term_, term);
    term_begun_ = coordinates_ = true;
    record_is_old_ = !damage_.empty() || !pins_.empty();
    pointers_.reset();
    return absl::OkStatus();
  });
}

void SimSharedFiles::MakeInflight(const std::string& tag, int64_t sequence,
                                  Callback<absl::StatusOr<std::string>> done) {
  Ask<absl::StatusOr<std::string>>(
      disk_.Latency(microseconds(200), milliseconds(10)), std::move(done),
      [this, tag, sequence] { return disk_.MakeInflight(node_, tag, sequence); });
}

void SimSharedFiles::FindReplaced(const Publication& publication, Callback<absl::StatusOr<Replaced>> done) {
  Ask<absl::StatusOr<Replaced>>(
      disk_.Latency(microseconds(50), milliseconds(2)), std::move(done),
      [this, publication] { return disk_.FindReplaced(node_, publication, Pinned()); });
}

void SimSharedFiles::Find(const SharedInflight& save, Callback<absl::StatusOr<SharedPlace>> done) {
  Ask<absl::StatusOr<SharedPlace>>(disk_.Latency(microseconds(100), milliseconds(5)), std::move(done),
                                   [this, save] { return disk_.Find(node_, save); });
}

void SimSharedFiles::Publish(const Publication& publication, Callback<absl::StatusOr<Published>> done) {
  Ask<absl::StatusOr<Published>>(disk_.Latency(microseconds(500), milliseconds(20)), std::move(done),
                                 [this, publication] {
                                   if (!term_begun_)
                                     disk_.oracle_->Violated(node_ + " publishes before its term has begun");
                                   return disk_.Publish(node_, publication, Pinned());
                                 });
}

void SimSharedFiles::CheckRemovable(const std::string& tag, int64_t sequence,
                                    Callback<absl::StatusOr<uint64_t>> done) {
  Ask<absl::StatusOr<uint64_t>>(
      disk_.Latency(microseconds(100), milliseconds(5)), std::move(done),
      [this, tag, sequence]() -> absl::StatusOr<uint64_t> {
        if (!coordinates_) return absl::UnavailableError("no term has begun");
        if (disk_.Hits(disk_.faults_.open)) return ErrnoError(EIO, "reading the manifest");
        if (!pointers_) UpdatePointers(disk_.View(node_));
        if (pointers_->holders.contains(sequence))
          return MakeError(absl::StatusCode::kFailedPrecondition, reason::kPointed,
                           "a pointer file names it");
        const auto found = disk_.names_.tags.find(tag);
        if (found == disk_.names_.tags.end() || found->second->summary.sequence() != sequence)
          return NoCheckpoint(tag);
        if (Pinned().contains(sequence))
          return MakeError(absl::StatusCode::kFailedPrecondition, reason::kPinned, "it is pinned");
        return found->second->inode;
      });
}

void SimSharedFiles::Remove(const std::string& tag, int64_t sequence, uint64_t inode,
                            Callback<absl::StatusOr<bool>> done) {
  Ask<absl::StatusOr<bool>>(
      disk_.Latency(microseconds(200), milliseconds(10)), std::move(done),
      [this, tag, sequence, inode] { return disk_.Remove(node_, tag, sequence, inode); });
}

void SimSharedFiles::Sweep(int64_t last, const std::set<int64_t>& unfinished, Callback<absl::Status> done) {
  Ask<absl::Status>(disk_.Latency(microseconds(200), milliseconds(10)), std::move(done),
                    [this, last, unfinished] { return disk_.Sweep(node_, last, unfinished); });
}

// ---- calls that the simulation does not make

void SimSharedFiles::ListForeign(Callback<absl::StatusOr<std::vector<ForeignCheckpoint>>> done) {
  using Listed = absl::StatusOr<std::vector<ForeignCheckpoint>>;
  Ask<Listed>(microseconds(50), std::move(done), [] { return std::vector<ForeignCheckpoint>(); });
}
void SimSharedFiles::ReadBack(std::shared_ptr<CheckpointReader>, std::string, int64_t, int64_t,
                              Callback<absl::Status> done) {
  Ask<absl::Status>(microseconds(50), std::move(done), NotAsked);
}
void SimSharedFiles::ReadFiles(std::shared_ptr<CheckpointReader>, std::vector<FileTarget>,
                               Callback<absl::Status> done) {
  Ask<absl::Status>(microseconds(50), std::move(done), NotAsked);
}
void SimSharedFiles::SurveyForeign(std::string, uid_t, int32_t, std::shared_ptr<SurveyProgress>,
                                   Callback<absl::StatusOr<ForeignSurvey>> done) {
  Ask<absl::StatusOr<ForeignSurvey>>(microseconds(50), std::move(done), NotAsked);
}

}  // namespace ckptd::sim_nodes
