// What a daemon remembers between two lives: the roots that it knows (KnownRoots of proto/ckptd/storage/v1,
// as text).
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

// Bounds on what one user can make the daemon remember.
struct KnownRootLimits {
  int roots_per_uid = 256;
  int64_t bytes_per_uid = int64_t{1} << 20;  // Of the file.
};

class StateDirectory {
 public:
  // Makes the directory when it is missing (the one above it must exist) and locks it for the object's life.
  // FAILED_PRECONDITION, reason STATE_LOCKED, when another daemon has it, and reason STATE_UNREADABLE when
  // no entry of the file can be read: then saves that wait in unknown roots would be forgotten. Waits
  // for the lock for up to `patience`: a daemon that was killed keeps it until the kernel has taken all of it
  // down.
  static absl::StatusOr<std::unique_ptr<StateDirectory>> Open(const std::string& path,
                                                              Duration patience = Duration::zero(),
                                                              KnownRootLimits limits = {});

  std::vector<storage::v1::KnownRoot> roots() const;
  // What Open had to leave out of the list because it cannot be read. A copy of the file is in
  // known_roots.damaged.
  const std::vector<std::string>& problems() const { return problems_; }

  // While it lives, the root is in use: the limits do not remove its entry.
  using InUse = std::shared_ptr<const void>;
  // An entry is a user's directory at a path: (uid, path, inode). Device numbers change with a boot, and the
  // path is the client's word, so neither tells directories apart, and an entry never takes the place of
  // another one. Durable on return; at once when the entry is there. Where the user has too many, those
  // that this start did not find go first, then the oldest ones that are not in use. RESOURCE_EXHAUSTED,
  // reason LIMIT_EXCEEDED, when all of them are. Thread-safe.
  absl::StatusOr<InUse> Remember(const storage::v1::KnownRoot& root);
  // Says whether there is such a directory at its path now. Thread-safe.
  void SetMissing(const storage::v1::KnownRoot& root, bool missing);

 private:
  struct Entry {
    storage::v1::KnownRoot root;
    std::weak_ptr<const void> in_use;
    bool missing = false;
  };

  StateDirectory() = default;
  absl::Status Load();
  absl::Status Write(const std::vector<Entry>& entries);
  absl::Status MakeRoom(std::vector<Entry>& entries, const storage::v1::KnownRoot& root) const;

  std::string path_;
  KnownRootLimits limits_;
  std::vector<std::string> problems_;
  std::unique_ptr<FileSystem> fs_;
  ScopedHandle directory_;
  ScopedHandle lock_;
  mutable Mutex mutex_;
  std::vector<Entry> entries_ ABSL_GUARDED_BY(mutex_);  // Oldest first.
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ATTACH_STATE_DIRECTORY_H_
