// Schedules retries of known roots whose recovery failed with an error that says nothing about their
// checkpoints, such as EIO (CouldNotFindOut in storage/base/errors.h).
#ifndef CKPTD_DAEMON_ATTACH_ROOT_RETRIES_H_
#define CKPTD_DAEMON_ATTACH_ROOT_RETRIES_H_

#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "storage/base/clock.h"
#include "storage/base/mutex.h"

namespace ckptd {

// Thread-safe.
class RootRetries {
 public:
  // Records that an attempt to recover `root` has ended with `status`. Returns true if it will be retried:
  // after 1 s, 2 s, 4 s, ..., then every 60 s without end, because a disk may come back at any time.
  // Otherwise forgets the root.
  bool Ended(const storage::v1::KnownRoot& root, const absl::Status& status, Instant now);
  // Returns the roots that are due. Each is returned once until its next attempt has ended.
  std::vector<storage::v1::KnownRoot> TakeDue(Instant now);
  // Number of failed attempts so far; 0 if no retry is scheduled.
  int failures(const storage::v1::KnownRoot& root) const;

 private:
  struct Retry {
    storage::v1::KnownRoot root;
    int failures = 0;
    bool waiting = false;  // Waits until `at`; else an attempt is in flight.
    Instant at;
  };
  static std::string KeyOf(const storage::v1::KnownRoot& root);

  mutable Mutex mutex_;
  std::map<std::string, Retry> retries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ATTACH_ROOT_RETRIES_H_
