// A disk in memory that knows what was not synced, and a FileSystem over it. A test can ask at any moment
// what would be left after a power cut (power_cut.h has the rules) or after the death of the process.
//
//   CrashDisk disk;
//   disk.OnChange([&](const std::string& what) {        // After every operation that changes something.
//     std::unique_ptr<CrashDisk> left = disk.CutPower(Loss::kRandom, seed);
//     RootStore::Open(left.get(), left->root(), ...);
//   });
//
// Writes of an I/O queue (crash_io_queue.h) are in flight from their submission on: a power cut leaves any of
// their sectors. After Kill they are still on their way to the disk, as the kernel's are, and land when the
// test says so.
//
// Direct I/O requires multiples of 4096 in offset, length and memory address, as the most demanding disks do.
#ifndef CKPTD_TESTS_TESTING_CRASH_DISK_H_
#define CKPTD_TESTS_TESTING_CRASH_DISK_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/base/mutex.h"
#include "storage/fs/file_system.h"
#include "tests/testing/power_cut.h"

namespace ckptd {

struct CrashDiskOptions {
  bool can_exchange =
      true;  // Else RenameMode::kExchange is refused with EINVAL, as on some network file systems.
};

// Thread-safe.
class CrashDisk : public FileSystem {
 public:
  explicit CrashDisk(CrashDiskOptions options = {});
  ~CrashDisk() override = default;

  Handle root() const { return kRootHandle; }

  // Returns the disk after a power cut at this moment: nothing on it is unsynced or open.
  std::unique_ptr<CrashDisk> CutPower(Loss loss, uint64_t seed) const;
  // Returns the disk after the process was killed: nothing is lost, nothing is open or locked, and the writes
  // of its queues are late.
  std::unique_ptr<CrashDisk> Kill() const;
  int late_writes() const;
  void LandLateWrites();

  // Called after each operation that changes something, on the operation's thread and without a lock held,
  // with a description such as "Rename a/b c".
  void OnChange(std::function<void(const std::string& what)> hook);
  // Fails the next sync of this path, or of any path that ends with it, with EIO. Empty: the root.
  void FailNextSync(std::string path);
  bool anything_unsynced() const;

  // For inspection, and for what other programs do in a root: leaves nothing unsynced.
  std::optional<std::string> Content(const std::string& path) const;  // nullopt: not a regular file.
  std::vector<std::string> NamesIn(const std::string& path) const;    // Sorted; empty: no such directory.
  bool Exists(const std::string& path) const;
  void Plant(const std::string& path, const std::string& content);
  void Plant(const std::string& path, FileType type);
  // A hash of all names and bytes at and below the path.
  uint64_t Fingerprint(const std::string& path = "") const;

  absl::StatusOr<Handle> Open(Handle dir, std::string_view path, OpenMode mode) override;
  absl::Status Close(Handle handle) override;
  absl::Status MakeDir(Handle dir, std::string_view path) override;
  absl::Status Remove(Handle dir, std::string_view path, FileType type) override;
  absl::Status Rename(Handle old_dir, std::string_view old_path, Handle new_dir, std::string_view new_path,
                      RenameMode mode) override;
  // As a file system with shared blocks: the new file's content is durable once that file is synced.
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
  friend class CrashIoQueue;

  // Numbers that are not descriptors of this process: I/O that bypasses this disk fails.
  static constexpr Handle kRootHandle = 2'000'000;
  static constexpr Inode kRootInode = 1;

  struct Node {
    FileType type = FileType::kRegular;
    UnsyncedBytes bytes;                   // Of a regular file.
    std::map<std::string, Inode> entries;  // Of a directory, as processes see it.
    Inode parent = 0;                      // Its parent; 0: removed.
    std::string name;
  };
  struct OpenFile {
    Inode inode;
    bool writable;
    bool direct;
  };
  struct Transfer {
    Inode inode;
    int64_t offset;
    std::span<const std::byte> from;
    std::string own;  // The bytes of a late write, whose `from` is gone.
  };
  struct Parent {
    Inode directory;
    std::string name;
  };
  // For CrashIoQueue: submit a write, and end it; results as in a completion. A file stays open for submitted
  // writes even after its handle was closed.
  absl::StatusOr<uint64_t> SubmitWrite(Handle file, std::span<const std::byte> from, int64_t offset);
  int64_t EndWrite(uint64_t transfer);
  absl::StatusOr<Inode> Find(Handle file) const;
  int64_t SyncFile(Inode inode);

  absl::StatusOr<OpenFile> Get(Handle handle) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<OpenFile> GetDirectory(Handle handle) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Parent> FindParent(Handle dir, std::string_view path) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Inode Child(const Parent& at) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);  // 0: none.
  absl::StatusOr<Inode> Add(const Parent& at, FileType type) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Link(const Parent& at, Inode inode) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Unlink(const Parent& at) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckReplace(Inode from, Inode to) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status SyncInode(Inode inode) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Print(Inode inode, std::string& print) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string PathOf(Inode inode) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Inode Walk(const std::string& path) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);  // 0: no such path.
  void Tell(const std::string& what);

  const CrashDiskOptions options_;

  mutable Mutex mutex_;
  std::function<void(const std::string&)> hook_ ABSL_GUARDED_BY(mutex_);
  std::map<Inode, Node> nodes_ ABSL_GUARDED_BY(mutex_);  // Including removed ones.
  UnsyncedNames names_ ABSL_GUARDED_BY(mutex_);
  std::map<Handle, OpenFile> open_ ABSL_GUARDED_BY(mutex_);
  std::map<Inode, Handle> locks_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, Transfer> under_way_ ABSL_GUARDED_BY(mutex_);
  std::vector<Transfer> late_ ABSL_GUARDED_BY(mutex_);
  std::optional<std::string> failing_sync_ ABSL_GUARDED_BY(mutex_);
  Inode next_inode_ ABSL_GUARDED_BY(mutex_) = kRootInode + 1;
  Handle next_handle_ ABSL_GUARDED_BY(mutex_) = kRootHandle + 1;
  uint64_t next_transfer_ ABSL_GUARDED_BY(mutex_) = 1;
};

}  // namespace ckptd
#endif  // CKPTD_TESTS_TESTING_CRASH_DISK_H_
