// Known roots that could not be recovered because something could not be found out (CouldNotFindOut in
// storage/base/errors.h): when each is tried again.
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
  // An attempt to recover `root` has ended with `status`. True when it is to be tried again: after 1 s, then
  // 2 s, 4 s, ... and then every 60 s, for a disk may come back at any time. Any other end forgets the root.
  bool Ended(const storage::v1::KnownRoot& root, const absl::Status& status, Instant now);
  // Those whose time has come. Each is returned once, until its next attempt has ended.
  std::vector<storage::v1::KnownRoot> TakeDue(Instant now);
  // How often `root` has failed so far; 0 when it is not to be tried again.
  int failures(const storage::v1::KnownRoot& root) const;

 private:
  struct Retry {
    storage::v1::KnownRoot root;
    int failures = 0;
    bool waiting = false;  // Until `at`; else an attempt is under way.
    Instant at;
  };
  static std::string KeyOf(const storage::v1::KnownRoot& root);

  mutable Mutex mutex_;
  std::map<std::string, Retry> retries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ATTACH_ROOT_RETRIES_H_
