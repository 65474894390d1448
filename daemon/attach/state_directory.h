// The state directory: what a daemon leaves to the next one, as text of proto/ckptd/storage/v1, and a lock.
// The list of known roots (KnownRoots), and by which incarnations etcd may know this node (NodeIncarnations).
#ifndef CKPTD_DAEMON_ATTACH_STATE_DIRECTORY_H_
#define CKPTD_DAEMON_ATTACH_STATE_DIRECTORY_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "storage/base/clock.h"
#include "storage/base/mutex.h"
#include "storage/fs/file_system.h"

namespace ckptd {

// Limits on what one user can make the daemon remember.
struct KnownRootLimits {
  int roots_per_uid = 256;
  int64_t bytes_per_uid = int64_t{1} << 20;  // Of the file.
};

class StateDirectory {
 public:
  // Makes the directory if it is missing (its parent must exist) and locks it while the object lives.
  // FAILED_PRECONDITION, reason STATE_LOCKED, when another daemon holds the lock for longer than `timeout`: a
  // daemon that was killed keeps it until the kernel has torn it down. FAILED_PRECONDITION, reason
  // STATE_UNREADABLE, when no entry of the file can be read: to go on would forget roots with unfinished
  // saves.
  static absl::StatusOr<std::unique_ptr<StateDirectory>> Open(const std::string& path,
                                                              Duration timeout = Duration::zero(),
                                                              KnownRootLimits limits = {});

  // For roots that are added from now on. Thread-safe.
  void SetLimits(KnownRootLimits limits);

  std::vector<storage::v1::KnownRoot> roots() const;
  // One message for each entry that Open could not read. A copy of the damaged file is in
  // known_roots.damaged.
  const std::vector<std::string>& problems() const { return problems_; }

  // While it lives, the root is in use, and its entry is not removed to make room.
  using InUse = std::shared_ptr<const void>;
  // Adds a root to the list; durable on return. An entry is identified by (uid, path, inode): device numbers
  // change with a boot, and the client chooses the path, so neither alone identifies a directory. An entry
  // never replaces another one. Returns without writing if the entry exists. If the user has too many
  // entries, it removes those whose directory was missing at this start, then the oldest that are not in use.
  // RESOURCE_EXHAUSTED, reason LIMIT_EXCEEDED, when all are in use. Thread-safe.
  absl::StatusOr<InUse> Remember(const storage::v1::KnownRoot& root);
  // Records whether the directory is missing at its path now. Thread-safe.
  void SetMissing(const storage::v1::KnownRoot& root, bool missing);

  // Empty if this node has never registered. Errors of reading the file; FAILED_PRECONDITION, reason
  // STATE_UNREADABLE: without them, the node's name is free when the lease of its last daemon has ended.
  absl::StatusOr<std::vector<std::string>> ReadIncarnations() const;
  // Replaces them; durable on return. Thread-safe.
  absl::Status RememberIncarnations(const std::vector<std::string>& incarnations);

 private:
  struct Entry {
    storage::v1::KnownRoot root;
    std::weak_ptr<const void> in_use;
    bool missing = false;
  };

  StateDirectory() = default;
  absl::Status Load();
  absl::Status Write(const std::vector<Entry>& entries);
  absl::Status MakeRoom(std::vector<Entry>& entries, const storage::v1::KnownRoot& root) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  std::string path_;
  std::vector<std::string> problems_;
  std::unique_ptr<FileSystem> fs_;
  ScopedHandle directory_;
  ScopedHandle lock_;
  mutable Mutex mutex_;
  KnownRootLimits limits_ ABSL_GUARDED_BY(mutex_);
  std::vector<Entry> entries_ ABSL_GUARDED_BY(mutex_);  // Oldest first.
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ATTACH_STATE_DIRECTORY_H_
