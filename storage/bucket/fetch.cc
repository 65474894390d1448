#include "storage/bucket/fetch.h"

#include <memory>
#include <random>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/mutex.h"
#include "storage/base/status_macros.h"
#include "storage/bucket/object_file_system.h"
#include "storage/commit/checkpoint/checkpoint_dir.h"
#include "storage/commit/checkpoint/checkpoint_tree.h"
#include "storage/commit/checkpoint/scan.h"
#include "storage/format/names.h"

namespace ckptd {
namespace {

using storage::v1::FileRecord;
using storage::v1::ManifestSummary;

constexpr std::string_view kFetchDirectory = ".fetch";
constexpr int64_t kMaxRecordBytes = int64_t{1} << 30;

// Sequence 1: in the trash a sweep takes it for what is left of a save that has ended.
std::string NameInTerm(const std::string& tag) {
  std::random_device random;
  const uint64_t high = random();
  return InflightName(tag, 1, high << 32 | random());
}

class Fetcher {
 public:
  Fetcher(ObjectStore& store, const std::string& prefix, std::string tag, FileSystem& fs, Handle root,
          const TransferOptions& options, const FetchTerm& term)
      : store_(store),
        bucket_(MakeObjectFileSystem(&store, prefix)),
        base_(CheckpointKey(prefix, tag)),
        tag_(std::move(tag)),
        fs_(fs),
        root_(root),
        options_(options),
        term_(term),
        name_(term.number == 0 ? tag_ : NameInTerm(tag_)) {}

  absl::StatusOr<ManifestSummary> Run() {
    CKPTD_RETURN_IF_ERROR(CheckTag(tag_));
    CKPTD_RETURN_IF_ERROR(ReadManifest());
    CKPTD_ASSIGN_OR_RETURN(const bool is_there, IsThere());
    if (is_there) return manifest_.summary;
    CKPTD_RETURN_IF_ERROR(OpenPlace());
    CKPTD_RETURN_IF_ERROR(CheckRoom());
    const absl::Status fetched = [&] {
      CKPTD_RETURN_IF_ERROR(MakeDirectory());
      CKPTD_RETURN_IF_ERROR(GetFiles());
      CKPTD_RETURN_IF_ERROR(GetRecords());
      return Commit();
    }();
    if (fetched.ok()) return manifest_.summary;
    RemoveTree(fs_, fetch_dir_.get(), name_).IgnoreError();  // The next fetch removes what is left.
    return fetched;
  }

 private:
  absl::Status ReadManifest() {
    const std::string path = OurPath(tag_, std::string(kManifestName));
    absl::StatusOr<std::string> bytes;
    const absl::Status read = GetUndamaged([&]() -> absl::Status {
      bytes = ReadSmallFile(*bucket_, kObjectRoot, path, kMaxManifestBytes);
      if (!bytes.ok()) return bytes.status();
      CKPTD_ASSIGN_OR_RETURN(manifest_, DecodeManifest(*bytes));
      return absl::OkStatus();
    });
    if (IsMissing(bytes.status())) {
      return MakeError(absl::StatusCode::kNotFound, "NO_CHECKPOINT",
                       absl::StrCat("there is no committed checkpoint beneath ", base_,
                                    " (an upload that has not "
                                    "ended is none)"),
                       {{"tag", tag_}});
    }
    CKPTD_RETURN_IF_ERROR(read);
    manifest_bytes_ = *std::move(bytes);
    if (manifest_.summary.tag() == tag_) return absl::OkStatus();
    return MakeError(absl::StatusCode::kDataLoss, "CORRUPT_MANIFEST",
                     absl::StrCat("the manifest beneath ", base_, " is of tag ", manifest_.summary.tag(),
                                  ": the objects were renamed or copied"));
  }

  absl::StatusOr<bool> IsThere() {
    CKPTD_ASSIGN_OR_RETURN(const Target target, InspectTarget(fs_, root_, tag_));
    if (target.kind == TargetKind::kForeign) return TagForeignError(tag_, target.what);
    if (target.kind != TargetKind::kCheckpoint) return false;
    CKPTD_ASSIGN_OR_RETURN(
        const std::string there,
        ReadSmallFile(fs_, root_, OurPath(tag_, std::string(kManifestName)), kMaxManifestBytes));
    if (there == manifest_bytes_) return true;
    return TagTakenError(tag_, target.summary.sequence());
  }

  absl::Status OpenPlace() {
    if (term_.number != 0) {
      const std::string path = absl::StrCat(std::string(kOurDirectory), "/", std::string(kSharedDirectory),
                                            "/", TermName(term_.number));
      CKPTD_ASSIGN_OR_RETURN(fetch_dir_, OpenScoped(fs_, root_, path, OpenMode::kDirectory));
      return absl::OkStatus();
    }
    CKPTD_RETURN_IF_ERROR(MakeDirsDurably(fs_, root_, kFetchDirectory));
    CKPTD_ASSIGN_OR_RETURN(fetch_dir_, OpenScoped(fs_, root_, kFetchDirectory, OpenMode::kDirectory));
    CKPTD_ASSIGN_OR_RETURN(lock_, OpenScoped(fs_, fetch_dir_.get(), kLockName, OpenMode::kLock));
    if (const absl::Status locked = fs_.Lock(lock_.get()); !locked.ok())
      return Annotate(locked, "another process fetches into this root (.fetch/lock)");
    return RemoveLeft();
  }

  // What fetches have brought that did not end. No other one is under way, because this one has the lock.
  absl::Status RemoveLeft() {
    CKPTD_ASSIGN_OR_RETURN(const std::vector<DirEntry> entries, fs_.List(fetch_dir_.get()));
    for (const DirEntry& entry : entries) {
      if (entry.type != FileType::kDirectory) continue;
      CKPTD_RETURN_IF_ERROR(RemoveTree(fs_, fetch_dir_.get(), entry.name));
    }
    return absl::OkStatus();
  }

  // Before hours are spent on what cannot end.
  absl::Status CheckRoom() {
    CKPTD_ASSIGN_OR_RETURN(const SpaceInfo space, fs_.Space(root_));
    const int64_t needed = manifest_.summary.size_bytes();
    if (space.free_bytes >= needed) return absl::OkStatus();
    return MakeError(absl::StatusCode::kResourceExhausted, "NO_SPACE",
                     absl::StrCat(tag_, " has ", needed, " bytes, and the disk of the root has ",
                                  space.free_bytes, " free; make room there, or use a root on another disk"),
                     {{"tag", tag_}});
  }

  absl::Status MakeDirectory() {
    CKPTD_RETURN_IF_ERROR(fs_.MakeDir(fetch_dir_.get(), name_));
    CKPTD_ASSIGN_OR_RETURN(dir_, OpenScoped(fs_, fetch_dir_.get(), name_, OpenMode::kDirectory));
    CKPTD_RETURN_IF_ERROR(fs_.MakeDir(dir_.get(), kOurDirectory));
    for (const FileRecord& file : manifest_.body.files()) paths_.push_back(file.path());
    return MakeParents(fs_, dir_.get(), paths_);
  }

  absl::Status GetFiles() {
    std::vector<FilePart> parts;
    for (size_t i = 0; i < paths_.size(); ++i) {
      const FileRecord& record = manifest_.body.files(static_cast<int>(i));
      CKPTD_RETURN_IF_ERROR(OpenScoped(fs_, dir_.get(), record.path(), OpenMode::kCreate).status());
      const std::vector<FilePart> of_file =
          PartsOf(i, record.size_bytes(), manifest_.summary.chunk_bytes(), options_);
      parts.insert(parts.end(), of_file.begin(), of_file.end());
    }
    CKPTD_RETURN_IF_ERROR(RunParallel(options_.threads, parts.size(), [&](size_t i) {
      return buffers_.With(parts[i].size,
                           [&](std::span<std::byte> bytes) { return GetPart(parts[i], bytes); });
    }));
    return RunParallel(options_.threads, paths_.size(), [&](size_t i) -> absl::Status {
      CKPTD_ASSIGN_OR_RETURN(const ScopedHandle file,
                             OpenScoped(fs_, dir_.get(), paths_[i], OpenMode::kUpdate));
      return fs_.Sync(file.get(), SyncMode::kData);
    });
  }

  absl::Status GetPart(const FilePart& part, std::span<std::byte> bytes) {
    const FileRecord& record = manifest_.body.files(static_cast<int>(part.file));
    CKPTD_RETURN_IF_ERROR(GetChecked(store_, base_ + record.path(), record, manifest_.summary.chunk_bytes(),
                                     part.offset, bytes));
    CKPTD_ASSIGN_OR_RETURN(const ScopedHandle file,
                           OpenScoped(fs_, dir_.get(), record.path(), OpenMode::kUpdate));
    CKPTD_RETURN_IF_ERROR(WriteFully(fs_, file.get(), part.offset, bytes));
    // While the next parts arrive.
    CKPTD_RETURN_IF_ERROR(fs_.Sync(file.get(), SyncMode::kBegin));
    MutexLock lock(mutex_);
    done_bytes_ += part.size;
    if (options_.progress != nullptr) options_.progress(done_bytes_);
    return absl::OkStatus();
  }

  // The records of ranks or nodes. Names from a bucket may be anything: others are left alone. A record that
  // stays damaged is fetched as it is, because the files are whole without it: `verify` names it.
  absl::Status GetRecords() {
    CKPTD_ASSIGN_OR_RETURN(
        const ScopedHandle ours,
        OpenScoped(*bucket_, kObjectRoot, absl::StrCat(tag_, "/", std::string(kOurDirectory)),
                   OpenMode::kDirectory));
    CKPTD_ASSIGN_OR_RETURN(const std::vector<DirEntry> entries, bucket_->List(ours.get()));
    for (const DirEntry& entry : entries) {
      const bool is_record =
          ParsePartRecordName(entry.name).has_value() || absl::StartsWith(entry.name, "node.");
      if (entry.type != FileType::kRegular || !is_record) continue;
      absl::StatusOr<std::string> record;
      GetUndamaged([&]() -> absl::Status {
        record = ReadSmallFile(*bucket_, ours.get(), entry.name, kMaxRecordBytes);
        if (!record.ok()) return record.status();
        return DecodePartRecord(*record).ok() ? absl::OkStatus() : DecodeNodePartRecord(*record).status();
      }).IgnoreError();
      if (!record.ok()) return record.status();
      CKPTD_RETURN_IF_ERROR(WriteNewFile(fs_, dir_.get(), OurPath("", entry.name), *record));
    }
    return absl::OkStatus();
  }

  absl::Status Commit() {
    const std::string manifest = OurPath("", std::string(kManifestName));
    CKPTD_RETURN_IF_ERROR(WriteNewFile(fs_, dir_.get(), manifest, manifest_bytes_));
    paths_.push_back(manifest);
    CKPTD_RETURN_IF_ERROR(SyncDirectories(fs_, dir_.get(), paths_));
    if (term_.may_commit != nullptr) CKPTD_RETURN_IF_ERROR(term_.may_commit());
    // An empty directory at the tag is replaced.
    CKPTD_RETURN_IF_ERROR(fs_.Rename(fetch_dir_.get(), name_, root_, tag_, RenameMode::kReplace));
    CKPTD_RETURN_IF_ERROR(fs_.Sync(root_, SyncMode::kAll));
    return fs_.Sync(fetch_dir_.get(), SyncMode::kAll);
  }

  ObjectStore& store_;
  const std::unique_ptr<FileSystem> bucket_;
  const std::string base_;
  const std::string tag_;
  FileSystem& fs_;
  const Handle root_;
  const TransferOptions& options_;
  const FetchTerm& term_;
  const std::string name_;
  std::string manifest_bytes_;
  Manifest manifest_;
  ScopedHandle fetch_dir_, lock_, dir_;
  std::vector<std::string> paths_;
  PartBuffers buffers_;
  Mutex mutex_;
  int64_t done_bytes_ = 0;
};

}  // namespace

absl::StatusOr<ManifestSummary> FetchCheckpoint(ObjectStore& store, const std::string& prefix,
                                                const std::string& tag, FileSystem& fs, Handle root,
                                                const TransferOptions& options, const FetchTerm& term) {
  return Fetcher(store, prefix, tag, fs, root, options, term).Run();
}

}  // namespace ckptd
