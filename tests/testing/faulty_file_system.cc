#include "tests/testing/faulty_file_system.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"

namespace ckptd {
namespace {

bool StartsWith(const std::string& path, const std::string& prefix) {
  return path.compare(0, prefix.size(), prefix) == 0;
}

}  // namespace

std::string_view FsOpName(FsOp op) {
  constexpr std::string_view kNames[] = {"Open",  "Close",  "MakeDir", "Remove",   "Rename",
                                         "Share", "List",   "Stat",    "Allocate", "Truncate",
                                         "Sync",  "ReadAt", "WriteAt", "Lock",     "Space"};
  return kNames[static_cast<size_t>(op)];
}

std::string FsCall::ToString() const {
  std::string text(FsOpName(op));
  if (!path.empty()) absl::StrAppend(&text, " ", path);
  if (!new_path.empty()) absl::StrAppend(&text, " ", new_path);
  return text;
}

void FaultyFileSystem::Fail(FsFault fault) {
  MutexLock lock(mutex_);
  faults_.push_back({std::move(fault), 0});
}

void FaultyFileSystem::ClearFaults() {
  MutexLock lock(mutex_);
  faults_.clear();
}

void FaultyFileSystem::SetHook(std::function<void(const FsCall&)> hook) {
  MutexLock lock(mutex_);
  hook_ = std::move(hook);
}

std::vector<FsCall> FaultyFileSystem::calls() const {
  MutexLock lock(mutex_);
  return calls_;
}

int FaultyFileSystem::Count(FsOp op) const {
  MutexLock lock(mutex_);
  return static_cast<int>(
      std::count_if(calls_.begin(), calls_.end(), [op](const FsCall& call) { return call.op == op; }));
}

int FaultyFileSystem::open_handles() const {
  MutexLock lock(mutex_);
  return static_cast<int>(paths_.size());
}

std::string FaultyFileSystem::PathOf(Handle dir, std::string_view path) const {
  MutexLock lock(mutex_);
  const auto found = paths_.find(dir);
  if (found == paths_.end()) return std::string(path);
  if (path.empty()) return found->second;
  return absl::StrCat(found->second, "/", std::string(path));
}

FaultyFileSystem::Verdict FaultyFileSystem::Judge(const FsCall& call) {
  Verdict verdict;
  std::function<void(const FsCall&)> hook;
  {
    MutexLock lock(mutex_);
    calls_.push_back(call);
    hook = hook_;
    for (Counted& counted : faults_) {
      const FsFault& fault = counted.fault;
      const bool here = StartsWith(call.path, fault.path) ||
                        (call.op == FsOp::kRename && StartsWith(call.new_path, fault.path));
      if (fault.op != call.op || !here) continue;
      const bool fails = fault.nth == FsFault::kEvery || fault.nth == ++counted.seen;
      if (fails) (fault.after ? verdict.after : verdict.before) = ErrnoError(fault.error, call.ToString());
    }
  }
  if (hook) hook(call);
  return verdict;
}

absl::StatusOr<Handle> FaultyFileSystem::Open(Handle dir, std::string_view path, OpenMode mode) {
  const std::string full = PathOf(dir, path);
  const Verdict verdict = Judge({.op = FsOp::kOpen, .path = full, .new_path = {}});
  if (!verdict.before.ok()) return verdict.before;
  const absl::StatusOr<Handle> handle = base_->Open(dir, path, mode);
  if (handle.ok() && !verdict.after.ok()) {
    base_->Close(*handle).IgnoreError();
    return verdict.after;
  }
  if (handle.ok()) {
    MutexLock lock(mutex_);
    paths_[*handle] = full;
  }
  return handle;
}

absl::Status FaultyFileSystem::Close(Handle handle) {
  const Verdict verdict = Judge({.op = FsOp::kClose, .path = PathOf(handle, ""), .new_path = {}});
  if (!verdict.before.ok()) return verdict.before;
  {
    // Before the close: afterwards another thread may get the same number.
    MutexLock lock(mutex_);
    paths_.erase(handle);
  }
  const absl::Status status = base_->Close(handle);
  return verdict.after.ok() ? status : verdict.after;
}

absl::Status FaultyFileSystem::MakeDir(Handle dir, std::string_view path) {
  const Verdict verdict = Judge({.op = FsOp::kMakeDir, .path = PathOf(dir, path), .new_path = {}});
  if (!verdict.before.ok()) return verdict.before;
  const absl::Status status = base_->MakeDir(dir, path);
  return verdict.after.ok() ? status : verdict.after;
}

absl::Status FaultyFileSystem::Remove(Handle dir, std::string_view path, FileType type) {
  const Verdict verdict = Judge({.op = FsOp::kRemove, .path = PathOf(dir, path), .new_path = {}});
  if (!verdict.before.ok()) return verdict.before;
  const absl::Status status = base_->Remove(dir, path, type);
  return verdict.after.ok() ? status : verdict.after;
}

absl::Status FaultyFileSystem::Rename(Handle old_dir, std::string_view old_path, Handle new_dir,
                                      std::string_view new_path, RenameMode mode) {
  const Verdict verdict =
      Judge({.op = FsOp::kRename, .path = PathOf(old_dir, old_path), .new_path = PathOf(new_dir, new_path)});
  if (!verdict.before.ok()) return verdict.before;
  const absl::Status status = base_->Rename(old_dir, old_path, new_dir, new_path, mode);
  return verdict.after.ok() ? status : verdict.after;
}

absl::Status FaultyFileSystem::Share(Handle file, Handle dir, std::string_view path) {
  const Verdict verdict = Judge({.op = FsOp::kShare, .path = PathOf(dir, path), .new_path = {}});
  if (!verdict.before.ok()) return verdict.before;
  const absl::Status status = base_->Share(file, dir, path);
  return verdict.after.ok() ? status : verdict.after;
}

absl::StatusOr<std::vector<DirEntry>> FaultyFileSystem::List(Handle dir) {
  const Verdict verdict = Judge({.op = FsOp::kList, .path = PathOf(dir, ""), .new_path = {}});
  if (!verdict.before.ok()) return verdict.before;
  if (!verdict.after.ok()) return verdict.after;
  return base_->List(dir);
}

absl::StatusOr<FileStat> FaultyFileSystem::Stat(Handle dir, std::string_view path) {
  const Verdict verdict = Judge({.op = FsOp::kStat, .path = PathOf(dir, path), .new_path = {}});
  if (!verdict.before.ok()) return verdict.before;
  if (!verdict.after.ok()) return verdict.after;
  return base_->Stat(dir, path);
}

absl::Status FaultyFileSystem::Allocate(Handle file, int64_t size) {
  const Verdict verdict =
      Judge({.op = FsOp::kAllocate, .path = PathOf(file, ""), .new_path = {}, .size = size});
  if (!verdict.before.ok()) return verdict.before;
  const absl::Status status = base_->Allocate(file, size);
  return verdict.after.ok() ? status : verdict.after;
}

absl::Status FaultyFileSystem::Truncate(Handle file, int64_t size) {
  const Verdict verdict =
      Judge({.op = FsOp::kTruncate, .path = PathOf(file, ""), .new_path = {}, .size = size});
  if (!verdict.before.ok()) return verdict.before;
  const absl::Status status = base_->Truncate(file, size);
  return verdict.after.ok() ? status : verdict.after;
}

absl::Status FaultyFileSystem::Sync(Handle handle, SyncMode mode) {
  const Verdict verdict = Judge({.op = FsOp::kSync, .path = PathOf(handle, ""), .new_path = {}});
  if (!verdict.before.ok()) return verdict.before;
  const absl::Status status = base_->Sync(handle, mode);
  return verdict.after.ok() ? status : verdict.after;
}

absl::StatusOr<size_t> FaultyFileSystem::ReadAt(Handle file, int64_t offset, std::span<std::byte> into) {
  const Verdict verdict = Judge({.op = FsOp::kReadAt,
                                 .path = PathOf(file, ""),
                                 .new_path = {},
                                 .size = static_cast<int64_t>(into.size())});
  if (!verdict.before.ok()) return verdict.before;
  if (!verdict.after.ok()) return verdict.after;
  return base_->ReadAt(file, offset, into);
}

absl::StatusOr<size_t> FaultyFileSystem::WriteAt(Handle file, int64_t offset,
                                                 std::span<const std::byte> from) {
  const Verdict verdict = Judge({.op = FsOp::kWriteAt,
                                 .path = PathOf(file, ""),
                                 .new_path = {},
                                 .size = static_cast<int64_t>(from.size())});
  if (!verdict.before.ok()) return verdict.before;
  const absl::StatusOr<size_t> written = base_->WriteAt(file, offset, from);
  if (!verdict.after.ok()) return verdict.after;
  return written;
}

absl::Status FaultyFileSystem::Lock(Handle file) {
  const Verdict verdict = Judge({.op = FsOp::kLock, .path = PathOf(file, ""), .new_path = {}});
  if (!verdict.before.ok()) return verdict.before;
  const absl::Status status = base_->Lock(file);
  return verdict.after.ok() ? status : verdict.after;
}

absl::StatusOr<SpaceInfo> FaultyFileSystem::Space(Handle dir) {
  const Verdict verdict = Judge({.op = FsOp::kSpace, .path = PathOf(dir, ""), .new_path = {}});
  if (!verdict.before.ok()) return verdict.before;
  if (!verdict.after.ok()) return verdict.after;
  return base_->Space(dir);
}

}  // namespace ckptd
