#include "client/ckptctl/commands/disk_root.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/ckptctl/text/text.h"
#include "storage/base/errors.h"
#include "storage/base/real_path.h"
#include "storage/base/status_macros.h"
#include "storage/bucket/list.h"
#include "storage/bucket/object_file_system.h"
#include "storage/commit/checkpoint/checkpoint_dir.h"
#include "storage/commit/checkpoint/scan.h"
#include "storage/commit/shared/run/shared_layout.h"
#include "storage/commit/shared/run/shared_record.h"
#include "storage/commit/steps/records.h"
#include "storage/format/names.h"
#include "storage/format/run_name.h"
#include "storage/fs/posix_file_system.h"
#include "storage/object/s3_store.h"

namespace ckptd::ctl {
namespace {

using storage::v1::ManifestSummary;

constexpr int kListThreads = 8;

google::protobuf::Timestamp ToTimestamp(int64_t unix_us) {
  google::protobuf::Timestamp time;
  time.set_seconds(unix_us / 1'000'000);
  time.set_nanos(static_cast<int32_t>(unix_us % 1'000'000 * 1000));
  return time;
}

// Names a checkpoint as the daemon of this machine would.
v1::Checkpoint Named(const std::string& run, const std::string& path, const std::string& tag) {
  v1::Checkpoint checkpoint;
  checkpoint.set_run(run);
  checkpoint.set_name(absl::StrCat(run, "/checkpoints/", tag));
  checkpoint.set_tag(tag);
  checkpoint.set_directory(absl::StrCat(path, "/", tag));
  return checkpoint;
}

void SetSummary(const ManifestSummary& summary, v1::Checkpoint* checkpoint) {
  if (summary.has_step()) checkpoint->set_step(summary.step());
  checkpoint->set_sequence(summary.sequence());
  checkpoint->set_attempt(summary.attempt());
  checkpoint->set_ordinal(summary.ordinal());
  checkpoint->set_level(v1::COMMITTED);
  checkpoint->set_world_size(summary.world_size());
  checkpoint->set_size_bytes(summary.size_bytes());
  checkpoint->set_written_bytes(summary.size_bytes());
  checkpoint->set_file_count(summary.file_count());
  *checkpoint->mutable_metrics() = summary.metrics();
  *checkpoint->mutable_create_time() = ToTimestamp(summary.create_time_us());
  *checkpoint->mutable_commit_time() = ToTimestamp(summary.commit_time_us());
  checkpoint->set_adopted_from(summary.adopted_from());
  checkpoint->set_suspect(summary.suspect());
}

v1::Damage ToWire(const storage::v1::Damage& mark) {
  v1::Damage damage;
  damage.set_path(mark.path());
  if (mark.has_chunk()) damage.set_chunk(mark.chunk());
  damage.set_expected(mark.expected());
  damage.set_found(mark.found());
  damage.set_message(mark.message());
  *damage.mutable_time() = ToTimestamp(mark.time_us());
  return damage;
}

// Returns the record of a root that several nodes share; an empty one of another root.
absl::StatusOr<storage::v1::SharedRunRecord> LoadSharedRecord(FileSystem& fs, Handle ours) {
  constexpr int kLooks = 5;  // The coordinator of the next term removes the records of earlier ones.
  SharedLayout layout;
  layout.fs = &fs;
  absl::StatusOr<ScopedHandle> shared = OpenScoped(fs, ours, kSharedDirectory, OpenMode::kDirectory);
  if (IsMissing(shared.status())) return storage::v1::SharedRunRecord();
  if (!shared.ok()) return shared.status();
  layout.shared = *std::move(shared);
  absl::StatusOr<storage::v1::SharedRunRecord> record = SharedRecords(&layout).Load({});
  for (int look = 1; look < kLooks && absl::IsUnavailable(record.status()); ++look)
    record = SharedRecords(&layout).Load({});
  return record;
}

// Adds the pins and damage marks that the root's records have.
absl::Status AddMarks(FileSystem& fs, Handle root, v1::ListCheckpointsResponse* list) {
  const absl::StatusOr<ScopedHandle> ours = OpenScoped(fs, root, kOurDirectory, OpenMode::kDirectory);
  if (IsMissing(ours.status())) return absl::OkStatus();  // Checkpoints that were copied without the root.
  if (!ours.ok()) return ours.status();
  CKPTD_ASSIGN_OR_RETURN(const Pins pins, Pins::Load(fs, ours->get()));
  CKPTD_ASSIGN_OR_RETURN(const Damages damages, Damages::Load(fs, ours->get()));
  CKPTD_ASSIGN_OR_RETURN(const storage::v1::SharedRunRecord shared, LoadSharedRecord(fs, ours->get()));
  for (v1::Checkpoint& checkpoint : *list->mutable_checkpoints()) {
    checkpoint.set_pinned(pins.Contains(checkpoint.tag(), checkpoint.sequence()));
    const storage::v1::Damage* damage = damages.Find(checkpoint.tag(), checkpoint.sequence());
    if (damage != nullptr) *checkpoint.mutable_damage() = ToWire(*damage);
    for (const storage::v1::Pin& pin : shared.pins().pins()) {
      if (pin.tag() == checkpoint.tag() && pin.sequence() == checkpoint.sequence())
        checkpoint.set_pinned(true);
    }
    for (const storage::v1::Damage& mark : shared.damages().damages()) {
      if (mark.tag() == checkpoint.tag() && mark.sequence() == checkpoint.sequence())
        *checkpoint.mutable_damage() = ToWire(mark);
    }
  }
  return absl::OkStatus();
}

absl::Status NoSuchCheckpoint(const DiskRoot& root, const std::string& tag) {
  std::vector<std::string> tags;
  for (const v1::Checkpoint& checkpoint : root.checkpoints.checkpoints()) tags.push_back(checkpoint.tag());
  const std::string near = Nearest(tag, tags);
  return MakeError(absl::StatusCode::kNotFound, "NO_CHECKPOINT",
                   absl::StrCat("there is no checkpoint ", tag, " in ", root.path, "; ",
                                near.empty() ? absl::StrCat("see ckptctl list ", root.path)
                                             : absl::StrCat("did you mean ", near, "?")));
}

struct Found {
  std::vector<ManifestSummary> checkpoints;  // Newest first.
  RootScan others;                           // Has no checkpoints.
};

absl::StatusOr<Found> FindOnDisk(const OpenRoot& root) {
  Found found;
  CKPTD_ASSIGN_OR_RETURN(found.others, ScanRoot(*root.fs, root.handle.get()));
  auto& checkpoints = found.others.checkpoints;
  for (auto place = checkpoints.rbegin(); place != checkpoints.rend(); ++place)
    found.checkpoints.push_back(std::move(place->second));
  checkpoints.clear();
  return found;
}

// The list of the bucket says what the checkpoints are, and a scan of the rest what is damaged or another program's. As
// for a resume, the newest is the one that was begun last.
absl::StatusOr<Found> FindInBucket(const OpenRoot& root) {
  Found found;
  CKPTD_ASSIGN_OR_RETURN(BucketList list, ListBucket(*root.store, root.prefix, kListThreads));
  std::set<std::string> listed;
  for (BucketCheckpoint& checkpoint : list.checkpoints) {
    listed.insert(checkpoint.summary.tag());
    found.checkpoints.push_back(std::move(checkpoint.summary));
  }
  const std::unique_ptr<FileSystem> rest =
      MakeObjectFileSystem(root.store.get(), root.prefix, std::move(listed));
  CKPTD_ASSIGN_OR_RETURN(found.others, ScanRoot(*rest, kObjectRoot));
  for (auto& [sequence, summary] : found.others.checkpoints)  // Uploaded in between.
    found.checkpoints.push_back(std::move(summary));
  found.others.checkpoints.clear();
  std::sort(found.checkpoints.begin(), found.checkpoints.end(),
            [](const ManifestSummary& a, const ManifestSummary& b) {
              return std::pair(a.create_time_us(), a.sequence()) >
                     std::pair(b.create_time_us(), b.sequence());
            });
  return found;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ObjectStore>> OpenBucket(const BucketUrl& url) {
  S3Options options;
  options.bucket = url.bucket;
  return MakeS3Store(options);
}

absl::StatusOr<OpenRoot> OpenAnyRoot(const std::string& path) {
  OpenRoot root;
  if (IsBucketUrl(path)) {
    CKPTD_ASSIGN_OR_RETURN(const BucketUrl url, ParseBucketUrl(path));
    CKPTD_ASSIGN_OR_RETURN(root.store, OpenBucket(url));
    root.prefix = url.prefix;
    root.fs = MakeObjectFileSystem(root.store.get(), url.prefix);
    root.handle = ScopedHandle(root.fs.get(), kObjectRoot);
    root.path = absl::StrCat("s3://", url.bucket, url.prefix.empty() ? "" : "/", url.prefix);
    return root;
  }
  CKPTD_ASSIGN_OR_RETURN(root.path, RealPath(path));
  CKPTD_ASSIGN_OR_RETURN(root.fs, MakePosixFileSystem());
  CKPTD_ASSIGN_OR_RETURN(const Handle handle, OpenRootDirectory(root.path, std::nullopt));
  root.handle = ScopedHandle(root.fs.get(), handle);
  return root;
}

absl::StatusOr<DiskRoot> ReadDiskRoot(const std::string& path) {
  DiskRoot root;
  CKPTD_ASSIGN_OR_RETURN(const OpenRoot open, OpenAnyRoot(path));
  root.path = open.path;
  CKPTD_ASSIGN_OR_RETURN(const FileStat stat, open.fs->Stat(open.handle.get(), ""));
  root.uid = stat.uid;
  const std::string run = RunName(stat.device, stat.inode);
  CKPTD_ASSIGN_OR_RETURN(const Found found, open.store == nullptr ? FindOnDisk(open) : FindInBucket(open));
  for (const ManifestSummary& summary : found.checkpoints) {
    v1::Checkpoint& checkpoint = *root.checkpoints.add_checkpoints();
    checkpoint = Named(run, root.path, summary.tag());
    SetSummary(summary, &checkpoint);
  }
  CKPTD_RETURN_IF_ERROR(AddMarks(*open.fs, open.handle.get(), &root.checkpoints));
  for (const auto& [tag, status] : found.others.damaged) {
    v1::Checkpoint& unreadable = *root.checkpoints.add_checkpoints();
    unreadable = Named(run, root.path, tag);
    unreadable.mutable_damage()->set_message(std::string(status.message()));
  }
  const std::vector<ForeignTag>& foreign = found.others.foreign;
  for (auto place = foreign.rbegin(); place != foreign.rend(); ++place) {
    v1::ForeignCheckpoint& other = *root.checkpoints.add_foreign();
    other.set_tag(place->tag);
    other.set_run(run);
    other.set_directory(absl::StrCat(root.path, "/", place->tag));
    other.set_format(kForeignFormat);
    *other.mutable_done_time() = ToTimestamp(place->done_us);
  }
  const bool is_empty = root.checkpoints.checkpoints().empty() && root.checkpoints.foreign().empty();
  if (is_empty && !open.fs->Stat(open.handle.get(), kOurDirectory).ok()) {
    return MakeError(absl::StatusCode::kNotFound, "NO_CHECKPOINT",
                     absl::StrCat(root.path, " is no root: it has no ", std::string(kOurDirectory),
                                  " and no checkpoint; name the directory that holds the checkpoints"));
  }
  return root;
}

absl::StatusOr<v1::Checkpoint> DescribeOnDisk(const DiskRoot& root, const std::string& tag) {
  const v1::Checkpoint* found = nullptr;
  for (const v1::Checkpoint& checkpoint : root.checkpoints.checkpoints()) {
    const bool is_offered = !checkpoint.has_damage() && checkpoint.suspect().empty();
    if (tag == "latest" ? is_offered : checkpoint.tag() == tag) {
      found = &checkpoint;
      break;
    }
  }
  if (found == nullptr) return NoSuchCheckpoint(root, tag);
  CKPTD_ASSIGN_OR_RETURN(const OpenRoot open, OpenAnyRoot(root.path));
  CKPTD_ASSIGN_OR_RETURN(const ScopedHandle dir,
                         OpenScoped(*open.fs, open.handle.get(), found->tag(), OpenMode::kDirectory));
  CKPTD_ASSIGN_OR_RETURN(const Manifest manifest, ReadWholeManifest(*open.fs, dir.get(), ""));
  v1::Checkpoint checkpoint = *found;
  SetSummary(manifest.summary, &checkpoint);  // It may have been replaced since the scan.
  for (const storage::v1::FileRecord& file : manifest.body.files()) {
    v1::FileInfo& info = *checkpoint.add_files();
    info.set_path(file.path());
    info.set_size_bytes(file.size_bytes());
    info.set_rank(file.rank());
  }
  return checkpoint;
}

}  // namespace ckptd::ctl
