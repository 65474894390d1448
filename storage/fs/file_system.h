// Seam: file systems beneath open directories. Implementations: PosixFileSystem; for tests
// tests/testing/faulty_file_system.h.
//
// Every path is relative to an open directory and is resolved beneath it: no component may be a symbolic link
// or `..` (openat2 RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS). A handle is a number in the namespace of the file
// system that made it. Thread-safe; calls block. Errors are ErrnoError (storage/base/errors.h).
#ifndef CKPTD_STORAGE_FS_FILE_SYSTEM_H_
#define CKPTD_STORAGE_FS_FILE_SYSTEM_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ckptd {

using Handle = int;  // >= 0

enum class OpenMode {
  kRead,          // An existing regular file, for reading.
  kCreate,        // A new regular file, read and write, mode 0666 & ~umask. EEXIST if the name is taken.
  kCreateDirect,  // As kCreate, with O_DIRECT.
  kReadDirect,    // As kRead, with O_DIRECT.
  kDirectory,     // An existing directory.
  kUpdate,        // A regular file, for reading and writing; created as by kCreate if it is missing.
  kLock,          // As kUpdate, for Lock(), mode 0600: whoever may open a lock's file could take the lock.
};

enum class RenameMode {
  kReplace,    // As rename(2).
  kNoReplace,  // EEXIST if the new name is taken.
  kExchange,   // Swaps two existing names in one step.
};

enum class SyncMode {
  kData,  // fdatasync.
  kAll,   // fsync; for directories.
  // Begins to write what the file has, and waits for nothing: for a large file that is synced later. It makes nothing
  // durable, and may do nothing.
  kBegin,
};

enum class FileType { kRegular, kDirectory, kSymlink, kOther };

struct FileStat {
  FileType type;
  int64_t size = 0;
  uint32_t uid = 0;
  uint64_t device = 0;
  uint64_t inode = 0;
  int64_t modified_ns = 0;  // Unix time of the last change of the content, in nanoseconds.
  int64_t changed_ns = 0;   // Unix time of the last change of content or metadata; no program can set it.
};

struct DirEntry {
  std::string name;  // Never "." or "..".
  FileType type;
};

struct SpaceInfo {
  int64_t free_bytes = 0;  // Available to the caller.
  int64_t total_bytes = 0;
  std::string type;  // "ext4", "xfs", "tmpfs", ...; "0x..." if unknown.
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  virtual absl::StatusOr<Handle> Open(Handle dir, std::string_view path, OpenMode mode) = 0;
  virtual absl::Status Close(Handle handle) = 0;
  virtual absl::Status MakeDir(Handle dir, std::string_view path) = 0;                // Mode 0777 & ~umask.
  virtual absl::Status Remove(Handle dir, std::string_view path, FileType type) = 0;  // unlink or rmdir.
  virtual absl::Status Rename(Handle old_dir, std::string_view old_path, Handle new_dir,
                              std::string_view new_path, RenameMode mode) = 0;
  // Makes `path` a file with the content of the open file, without a copy of its bytes: with shared blocks where
  // the file system can (XFS, btrfs), so that a change of one of them leaves the other alone; else as a second
  // name of the same file (a hard link). EEXIST if the name is taken. If neither works, the error of the hard
  // link (EXDEV, EMLINK, EPERM, ...), and nothing is at `path`.
  virtual absl::Status Share(Handle file, Handle dir, std::string_view path) = 0;
  virtual absl::StatusOr<std::vector<DirEntry>> List(Handle dir) = 0;  // Sorted by name.
  // With an empty path, that of the directory (or file) `dir` itself. Does not follow a symbolic link.
  virtual absl::StatusOr<FileStat> Stat(Handle dir, std::string_view path) = 0;
  virtual absl::Status Allocate(Handle file, int64_t size) = 0;  // fallocate, mode 0.
  virtual absl::Status Truncate(Handle file, int64_t size) = 0;
  virtual absl::Status Sync(Handle handle, SyncMode mode) = 0;
  // May transfer fewer bytes than requested. ReadAt returns 0 at the end of the file.
  virtual absl::StatusOr<size_t> ReadAt(Handle file, int64_t offset, std::span<std::byte> into) = 0;
  virtual absl::StatusOr<size_t> WriteAt(Handle file, int64_t offset, std::span<const std::byte> from) = 0;
  // Takes an exclusive lock, without waiting, until the handle is closed. FAILED_PRECONDITION, reason LOCKED,
  // if another handle holds it.
  virtual absl::Status Lock(Handle file) = 0;
  virtual absl::StatusOr<SpaceInfo> Space(Handle dir) = 0;
};

// Owns a handle and closes it.
class ScopedHandle {
 public:
  ScopedHandle() = default;
  ScopedHandle(FileSystem* fs, Handle handle) : fs_(fs), handle_(handle) {}
  ScopedHandle(ScopedHandle&& o) noexcept : fs_(o.fs_), handle_(o.release()) {}
  ScopedHandle& operator=(ScopedHandle&& o) noexcept {
    if (this != &o) {
      reset();
      fs_ = o.fs_;
      handle_ = o.release();
    }
    return *this;
  }
  ~ScopedHandle() { reset(); }
  Handle get() const { return handle_; }
  explicit operator bool() const { return handle_ >= 0; }
  Handle release() {
    Handle h = handle_;
    handle_ = -1;
    return h;
  }
  void reset() {
    if (handle_ >= 0) fs_->Close(handle_).IgnoreError();
    handle_ = -1;
  }

 private:
  FileSystem* fs_ = nullptr;
  Handle handle_ = -1;
};

absl::StatusOr<ScopedHandle> OpenScoped(FileSystem& fs, Handle dir, std::string_view path, OpenMode mode);
// Loop over short transfers. ReadFully fails with DATA_LOSS, reason SHORT_FILE, if the file ends first.
absl::Status ReadFully(FileSystem& fs, Handle file, int64_t offset, std::span<std::byte> into);
absl::Status WriteFully(FileSystem& fs, Handle file, int64_t offset, std::span<const std::byte> from);
// Reads a whole small file. RESOURCE_EXHAUSTED if it has more than `limit` bytes.
absl::StatusOr<std::string> ReadSmallFile(FileSystem& fs, Handle dir, std::string_view path, int64_t limit);
// Makes a new small file and syncs its content. Its name is durable only after the directory is synced.
absl::Status WriteNewFile(FileSystem& fs, Handle dir, std::string_view path, std::string_view content);
// Replaces a file durably: writes and syncs a temporary file in the same directory, renames it over `path`,
// and syncs the directory. `path` has no directory part.
absl::Status ReplaceFileDurably(FileSystem& fs, Handle dir, std::string_view path, std::string_view content);
// Makes a directory, or returns what has the name already; nothing (nullopt) if this call has made it. Nodes that
// share the file system may do so at once. EEXIST if the name exists and still cannot be found after some tries.
absl::StatusOr<std::optional<FileStat>> MakeDirOrStat(FileSystem& fs, Handle dir, std::string_view path);
// Makes the directory and all missing ones above it, and syncs the parent of each new one.
absl::Status MakeDirsDurably(FileSystem& fs, Handle dir, std::string_view path);

// How much one RemoveTreeWithin may remove. The call subtracts what it has removed.
struct RemovalBudget {
  static constexpr int64_t kUnlimited = INT64_MAX;

  int64_t names = kUnlimited;
  int64_t bytes = kUnlimited;  // kUnlimited: sizes are not looked up, and removed_bytes stays 0.
  int64_t removed_bytes = 0;

  bool spent() const { return names <= 0 || bytes <= 0; }
};
// Removes the directory `dir`/`name` and everything in it, until the budget is spent. Returns true if the
// tree is gone. Each call makes progress. Follows no symbolic link.
//
// The tree may be of any depth: a user can nest directories without end. The call holds at most
// kMaxOpenLevels directories open and does not recurse. It renames a subtree that lies deeper up into the
// top directory of the tree and empties it from there.
inline constexpr size_t kMaxOpenLevels = 32;
absl::StatusOr<bool> RemoveTreeWithin(FileSystem& fs, Handle dir, const std::string& name,
                                      RemovalBudget& budget);
// Removes the whole tree, without a budget.
absl::Status RemoveTree(FileSystem& fs, Handle dir, const std::string& name);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_FS_FILE_SYSTEM_H_
