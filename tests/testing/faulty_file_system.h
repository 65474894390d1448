// A FileSystem that fails where a test says so, records every call, and calls the test before each operation.
//
//   FaultyFileSystem faulty(posix.get());
//   faulty.Fail({.op = FsOp::kSync, .nth = 3, .error = EIO});        // The third sync from now on.
//   faulty.Fail({.op = FsOp::kAllocate, .path = "inflight/", .nth = FsFault::kEvery, .error = ENOSPC});
//   faulty.SetHook([](const FsCall& call) { if (call.op == FsOp::kRename) std::_Exit(1); });
#ifndef CKPTD_TESTS_TESTING_FAULTY_FILE_SYSTEM_H_
#define CKPTD_TESTS_TESTING_FAULTY_FILE_SYSTEM_H_

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "storage/base/mutex.h"
#include "storage/fs/file_system.h"

namespace ckptd {

enum class FsOp {
  kOpen,
  kClose,
  kMakeDir,
  kRemove,
  kRename,
  kShare,
  kList,
  kStat,
  kAllocate,
  kTruncate,
  kSync,
  kReadAt,
  kWriteAt,
  kLock,
  kSpace,
};

// "Open", "Rename", ...
std::string_view FsOpName(FsOp op);

// Paths are joined from those of the directory handles and of the operation. The path of a directory that
// this object did not open is empty.
struct FsCall {
  FsOp op;
  std::string path;
  std::string new_path;          // Rename.
  int64_t size = 0;              // Allocate, Truncate: the size. ReadAt, WriteAt: the number of bytes.
  std::string ToString() const;  // "Rename a b", "Sync a"
};

struct FsFault {
  static constexpr int kEvery = 0;

  FsOp op;
  std::string path = {};  // Only calls whose path begins with this (Rename: either path).
  int nth = 1;            // Which of those calls from now on, counted from 1; or kEvery.
  int error = 0;          // errno. The operation is not done.
  bool after = false;     // The operation is done, and then the error is returned.
};

// Thread-safe.
class FaultyFileSystem : public FileSystem {
 public:
  explicit FaultyFileSystem(FileSystem* base) : base_(base) {}

  void Fail(FsFault fault);
  void ClearFaults();
  // Called before each operation, on the operation's thread and without a lock held: it may block, or never
  // return.
  void SetHook(std::function<void(const FsCall&)> hook);

  std::vector<FsCall> calls() const;  // All so far, in order, including failed ones.
  int Count(FsOp op) const;
  int open_handles() const;  // Opened here and not closed.

  absl::StatusOr<Handle> Open(Handle dir, std::string_view path, OpenMode mode) override;
  absl::Status Close(Handle handle) override;
  absl::Status MakeDir(Handle dir, std::string_view path) override;
  absl::Status Remove(Handle dir, std::string_view path, FileType type) override;
  absl::Status Rename(Handle old_dir, std::string_view old_path, Handle new_dir, std::string_view new_path,
                      RenameMode mode) override;
  absl::Status Share(Handle file, Handle dir, std::string_view path) override;
  absl::StatusOr<std::vector<DirEntry>> List(Handle dir) override;
  absl::StatusOr<FileStat> Stat(Handle dir, std::string_view path) override;
  absl::Status Allocate(Handle file, int64_t size) override;
  absl::Status Truncate(Handle file, int64_t size) override;
  absl::Status Sync(Handle handle, SyncMode mode) override;
  absl::StatusOr<size_t> ReadAt(Handle file, int64_t offset, std::span<std::byte> into) override;
  absl::StatusOr<size_t> WriteAt(Handle file, int64_t offset, std::span<const std::byte> from) override;
  absl::Status Lock(Handle file) override;
  absl::StatusOr<SpaceInfo> Space(Handle dir) override;

 private:
  struct Counted {
    FsFault fault;
    int seen = 0;  // Matching calls so far.
  };
  struct Verdict {
    absl::Status before;
    absl::Status after;
  };
  // Records the call, calls the hook, and returns how the call is to fail.
  Verdict Judge(const FsCall& call);
  std::string PathOf(Handle dir, std::string_view path) const;

  FileSystem* const base_;
  mutable Mutex mutex_;
  std::function<void(const FsCall&)> hook_ ABSL_GUARDED_BY(mutex_);
  std::vector<Counted> faults_ ABSL_GUARDED_BY(mutex_);
  std::vector<FsCall> calls_ ABSL_GUARDED_BY(mutex_);
  std::map<Handle, std::string> paths_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ckptd
#endif  // CKPTD_TESTS_TESTING_FAULTY_FILE_SYSTEM_H_
