// Where roots are looked at before the engine gets them. That blocks on the root's file system, and one that
// hangs must keep nobody from attaching another one.
#ifndef CKPTD_DAEMON_ATTACH_ATTACH_QUEUE_H_
#define CKPTD_DAEMON_ATTACH_ATTACH_QUEUE_H_

#include <sys/types.h>

#include <chrono>
#include <deque>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "daemon/base/worker_pool.h"
#include "daemon/engine/engine.h"
#include "storage/base/clock.h"
#include "storage/base/mutex.h"

namespace ckptd {

struct AttachLimits {
  int running_per_file_system = 2;  // Of one user; each may hang in the kernel for ever.
  int running_per_uid = 8;
  int waiting_per_uid = 64;
  int threads = 128;
  Duration patience = std::chrono::seconds(30);
};

// Thread-safe.
class AttachQueue {
 public:
  using Look = absl::AnyInvocable<absl::StatusOr<RootAttachment>()>;
  using Done = absl::AnyInvocable<void(absl::StatusOr<RootAttachment>)>;

  AttachQueue(AttachLimits limits, Clock* clock)
      : limits_(limits), clock_(clock), workers_(std::make_unique<WorkerPool>(limits.threads)) {}
  ~AttachQueue() { Close(); }

  // Runs `look` on a thread of the queue; `done` gets what it returns, once, on any thread. At most two looks
  // at one file system (any name that tells them apart) by one user run at a time, and eight by one user.
  // DEADLINE_EXCEEDED, reason FILE_SYSTEM_HANGS, when `look` has not returned after the patience; it may
  // still be running then. RESOURCE_EXHAUSTED, reason LIMIT_EXCEEDED, when too many of this user wait, unless
  // `any_number` may.
  void Submit(uid_t uid, const std::string& file_system, Look look, Done done, bool any_number = false);
  // Answers those whose patience is over. Call it about once a second.
  void Expire();
  // Waits for the looks that run. Those that wait, and later ones, hear UNAVAILABLE, reason DRAINING.
  void Close();

 private:
  struct Attach {
    uid_t uid = 0;
    std::string file_system;
    Look look;
    Done done;  // Empty: answered.
    Instant deadline;
    bool running = false;
  };
  void Run(const std::shared_ptr<Attach>& attach);
  void StartReady() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const AttachLimits limits_;
  Clock* const clock_;
  Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<std::shared_ptr<Attach>> attaches_ ABSL_GUARDED_BY(mutex_);  // In order; running ones, too.
  std::unique_ptr<WorkerPool> workers_;                                   // Null only once closed.
};

// Tells the file systems of open descriptors apart without asking a server that may be gone: "8:1".
std::string FileSystemOf(int descriptor);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ATTACH_ATTACH_QUEUE_H_
