// SimRootIo: reading checkpoints, and listing, surveying and adopting those of another program.
#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "tests/sim/sim_disk.h"
#include "tests/sim/sim_disk_inl.h"

namespace ckptd::sim {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

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
    return absl::UnimplementedError("the simulation does not read parts of files");
  }
  int64_t SizeOf(const std::string& path) const {
    for (const auto& file : manifest_.body.files()) {
      if (file.path() == path) return file.size_bytes();
    }
    return 0;
  }
  // Reads one whole file.
  absl::Status ReadInto(const FileTarget& file) const {
    Marks marks = marks_.at(file.path);
    const absl::Status good = Check(file.path);
    if (!good.ok() && !marks.empty()) marks.back() = ~marks.back();
    WriteMarks(file.runs, marks);
    return good;
  }
  absl::Status Check(const std::string& path) const {
    if (!rotten_->contains(path)) return absl::OkStatus();
    return MakeError(absl::StatusCode::kDataLoss, "CORRUPT_FILE",
                     absl::StrCat(path, " is corrupt, as planned"), {{"path", path}});
  }

 private:
  Manifest manifest_;
  const std::map<std::string, Marks> marks_;
  const std::shared_ptr<const std::set<std::string>> rotten_;
  const std::shared_ptr<std::multiset<int64_t>> readers_;
  const std::multiset<int64_t>::iterator here_;
};

}  // namespace

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
      scope_.Guard([this, fails, path = std::move(path), reader = std::move(reader),
                    done = std::move(done)]() mutable {
        const absl::Status read =
            fails ? Eio("reading back") : static_cast<const SimReader&>(*reader).Check(path);
        const storage::v1::ManifestSummary summary = reader->manifest().summary;
        reader.reset();
        if (absl::IsDataLoss(read) && !fails)
          disk_->oracle_->DamageFound(disk_->run_, summary.tag(), summary.sequence(), WaitsForScan());
        done(read);
      }));
}

void SimRootIo::ReadFiles(std::shared_ptr<CheckpointReader> reader, std::vector<FileTarget> files,
                          Callback<absl::Status> done) {
  const storage::v1::ManifestSummary summary = reader->manifest().summary;
  std::vector<std::span<const std::byte>> memory;
  for (const FileTarget& file : files) {
    for (const auto& run : file.runs) {
      if (disk_->oracle_->InUse(run.data(), static_cast<int64_t>(run.size())))
        disk_->oracle_->Violated(absl::StrCat(summary.tag(), " is read into memory that another I/O uses"));
      memory.emplace_back(run);
    }
    // The first bytes arrive at once.
    Marks torn(CountMarks(static_cast<const SimReader&>(*reader).SizeOf(file.path)));
    WriteMarks(file.runs, torn);
  }
  const int64_t use = *read_uses_.insert(disk_->oracle_->BeginUse(std::move(memory), disk_->run_)).first;
  const auto rotten = std::make_shared<bool>(false);
  Ask(reading_, disk_->Latency(milliseconds(1), milliseconds(500)),
      Callback<absl::Status>([this, summary, rotten, use, done = std::move(done)](absl::Status read) mutable {
        disk_->oracle_->EndUse(use);
        read_uses_.erase(use);
        if (*rotten)
          disk_->oracle_->DamageFound(disk_->run_, summary.tag(), summary.sequence(), WaitsForScan());
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
        for (const auto& entry : disk_->tags_) {
          if (!disk_->unseen_.contains(entry.first)) beside_[tag].push_back(entry.second.summary);
        }
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
      scope_.Guard([this, use, images = std::move(images), records = std::move(records),
                    done = std::move(done)]() mutable {
        disk_->oracle_->EndUse(use);
        for (size_t i = 0; i < images.size(); ++i) {
          const uint64_t digest = Digest(images[i].runs);
          if (static_cast<uint32_t>(digest) == records[i].chunk_crc32c(0) &&
              static_cast<uint32_t>(digest >> 32) == records[i].chunk_crc32c(1)) {
            continue;
          }
          disk_->oracle_->Violated(absl::StrCat("the resident copy of ", images[i].path, " has changed"));
        }
        done(absl::OkStatus());
      }));
}

}  // namespace ckptd::sim
