// What a daemon remembers between two lives: the roots that it knows (KnownRoots of proto/ckptd/storage/v1,
// as text).
#ifndef CKPTD_DAEMON_RUNTIME_STATE_DIRECTORY_H_
#define CKPTD_DAEMON_RUNTIME_STATE_DIRECTORY_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "storage/base/clock.h"
#include "storage/base/mutex.h"
#include "storage/fs/file_system.h"

namespace ckptd {

class StateDirectory {
 public:
  // Makes the directory when it is missing (the one above it must exist) and locks it for the object's life.
  // FAILED_PRECONDITION, reason STATE_LOCKED, when another daemon has it, and reason STATE_UNREADABLE when
  // the file cannot be read or understood: then saves that wait in unknown roots would be forgotten. Waits
  // for the lock for up to `patience`: a daemon that was killed keeps it until the kernel has taken all of it
  // down.
  static absl::StatusOr<std::unique_ptr<StateDirectory>> Open(const std::string& path,
                                                              Duration patience = Duration::zero());

  std::vector<storage::v1::KnownRoot> roots() const;
  // Durable on return; at once when the root is known. Takes the place of what had the same path or was the
  // same directory. Thread-safe.
  absl::Status Remember(const storage::v1::KnownRoot& root);

 private:
  StateDirectory() = default;
  absl::Status Load();

  std::string path_;
  std::unique_ptr<FileSystem> fs_;
  ScopedHandle directory_;
  ScopedHandle lock_;
  mutable Mutex mutex_;
  storage::v1::KnownRoots known_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_RUNTIME_STATE_DIRECTORY_H_
