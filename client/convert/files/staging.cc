#include "client/convert/files/staging.h"

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

constexpr char kPrefix[] = ".ckptd-convert.";
constexpr char kLockPrefix[] = ".ckptd-convert-lock.";

std::string StagingName(const std::string& name) { return kPrefix + name; }
std::string LockName(const std::string& name) { return kLockPrefix + name; }

// Locks a name. The holder removes the lock's file before it unlocks, so a file that has lost its name locks
// nothing: then try again.
absl::StatusOr<ScopedHandle> Lock(FileSystem& fs, Handle parent, const std::string& name) {
  for (;;) {
    CKPTD_ASSIGN_OR_RETURN(ScopedHandle file, OpenScoped(fs, parent, LockName(name), OpenMode::kLock));
    CKPTD_RETURN_IF_ERROR(fs.Lock(file.get()));
    CKPTD_ASSIGN_OR_RETURN(const FileStat opened, fs.Stat(file.get(), ""));
    const absl::StatusOr<FileStat> named = fs.Stat(parent, LockName(name));
    if (named.ok() && named->inode == opened.inode && named->device == opened.device) return file;
    if (!named.ok() && !absl::IsNotFound(named.status())) return named.status();
  }
}

// Removes the leftovers of processes that have died.
absl::Status RemoveLeftovers(FileSystem& fs, Handle parent, const std::string& own,
                             std::vector<std::string>* removed) {
  CKPTD_ASSIGN_OR_RETURN(const std::vector<DirEntry> entries, fs.List(parent));
  for (const DirEntry& entry : entries) {
    if (!entry.name.starts_with(kPrefix) || entry.type != FileType::kDirectory) continue;
    const std::string name = entry.name.substr(sizeof(kPrefix) - 1);
    if (name == own) continue;
    const absl::StatusOr<ScopedHandle> lock = Lock(fs, parent, name);
    if (!lock.ok()) continue;  // Its process lives, or this user may not remove it.
    if (RemoveTree(fs, parent, entry.name).ok()) removed->push_back(entry.name);
    fs.Remove(parent, LockName(name), FileType::kRegular).IgnoreError();
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckFree(FileSystem& fs, Handle parent, const std::string& name) {
  const absl::StatusOr<FileStat> stat = fs.Stat(parent, name);
  if (absl::IsNotFound(stat.status())) return absl::OkStatus();
  if (!stat.ok()) return Annotate(stat.status(), name);
  if (stat->type == FileType::kDirectory) {
    CKPTD_ASSIGN_OR_RETURN(const ScopedHandle dir, OpenScoped(fs, parent, name, OpenMode::kDirectory));
    CKPTD_ASSIGN_OR_RETURN(const std::vector<DirEntry> entries, fs.List(dir.get()));
    if (entries.empty()) return absl::OkStatus();
  }
  return MakeError(
      absl::StatusCode::kFailedPrecondition, "OUTPUT_NOT_EMPTY",
      absl::StrCat("the output ", name, " exists",
                   stat->type == FileType::kDirectory ? " and is not empty" : " and is no directory",
                   "; choose another name, or move it away"));
}

absl::Status CheckFreeFile(FileSystem& fs, Handle parent, const std::string& name) {
  const absl::StatusOr<FileStat> stat = fs.Stat(parent, name);
  if (absl::IsNotFound(stat.status())) return absl::OkStatus();
  if (!stat.ok()) return Annotate(stat.status(), name);
  return MakeError(absl::StatusCode::kFailedPrecondition, "OUTPUT_NOT_EMPTY",
                   absl::StrCat("the output ", name, " exists; choose another name, or move it away"));
}

absl::StatusOr<Staging> Staging::Make(FileSystem& fs, Handle parent, const std::string& name,
                                      std::vector<std::string>* removed) {
  Staging staging(&fs, parent, name);
  absl::StatusOr<ScopedHandle> lock = Lock(fs, parent, name);
  if (ReasonOf(lock.status()) == "LOCKED") {
    return Annotate(lock.status(),
                    absl::StrCat("another conversion is writing ", name, "; wait for its end"));
  }
  if (!lock.ok()) return Annotate(lock.status(), LockName(name));
  staging.lock_ = *std::move(lock);
  CKPTD_RETURN_IF_ERROR(CheckFree(fs, parent, name));
  const std::string beside = StagingName(name);
  if (fs.Stat(parent, beside).ok()) {
    CKPTD_RETURN_IF_ERROR(RemoveTree(fs, parent, beside));
    removed->push_back(beside);
  }
  CKPTD_RETURN_IF_ERROR(RemoveLeftovers(fs, parent, name, removed));
  CKPTD_RETURN_IF_ERROR(fs.MakeDir(parent, beside));
  CKPTD_ASSIGN_OR_RETURN(staging.dir_, OpenScoped(fs, parent, beside, OpenMode::kDirectory));
  return staging;
}

absl::Status Staging::Publish() {
  const std::string beside = StagingName(name_);
  // If nothing is there, kNoReplace. Over an empty directory a plain rename, which refuses any other
  // directory.
  absl::Status renamed = fs_->Rename(parent_, beside, parent_, name_, RenameMode::kNoReplace);
  const int error = ErrnoOf(renamed);
  if (error == EEXIST || error == EINVAL || error == ENOSYS) {
    CKPTD_RETURN_IF_ERROR(CheckFree(*fs_, parent_, name_));
    renamed = fs_->Rename(parent_, beside, parent_, name_, RenameMode::kReplace);
  }
  if (!renamed.ok()) return Annotate(renamed, absl::StrCat("renaming ", beside, " to ", name_));
  dir_.reset();
  return SyncParent();
}

absl::Status Staging::PublishFile() {
  absl::Status renamed = fs_->Rename(dir_.get(), name_, parent_, name_, RenameMode::kNoReplace);
  if (const int error = ErrnoOf(renamed); error == EEXIST || error == EINVAL || error == ENOSYS) {
    // The file system cannot refuse to replace, or there is something.
    CKPTD_RETURN_IF_ERROR(CheckFreeFile(*fs_, parent_, name_));
    renamed = fs_->Rename(dir_.get(), name_, parent_, name_, RenameMode::kReplace);
  }
  if (!renamed.ok())
    return Annotate(renamed, absl::StrCat("renaming ", StagingName(name_), "/", name_, " to ", name_));
  return SyncParent();
}

absl::Status Staging::SyncParent() {
  const absl::Status synced = fs_->Sync(parent_, SyncMode::kAll);
  if (synced.ok()) return absl::OkStatus();
  return MakeError(
      absl::StatusCode::kUnknown, "INDETERMINATE",
      absl::StrCat(name_,
                   " is complete and in its place, but a power cut may still undo that: syncing its parent "
                   "directory failed: ",
                   std::string(synced.message())));
}

Staging::~Staging() {
  if (!lock_) return;  // Moved from, or never locked.
  if (dir_) {
    dir_.reset();
    RemoveTree(*fs_, parent_, StagingName(name_)).IgnoreError();
  }
  fs_->Remove(parent_, LockName(name_), FileType::kRegular).IgnoreError();
}

}  // namespace ckptd
