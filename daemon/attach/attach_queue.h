// Inspects roots before the engine gets them. That blocks on the root's file system, and a file system that
// hangs must not keep anybody from attaching a root on another one.
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
  int running_per_file_system = 2;  // For one user; each may hang in the kernel forever.
  int running_per_uid = 8;
  int waiting_per_uid = 64;
  int threads = 128;
  Duration timeout = std::chrono::seconds(30);
};

// Thread-safe.
class AttachQueue {
 public:
  using Inspect = absl::AnyInvocable<absl::StatusOr<RootAttachment>()>;
  using Done = absl::AnyInvocable<void(absl::StatusOr<RootAttachment>)>;

  AttachQueue(AttachLimits limits, Clock* clock)
      : limits_(limits),
        clock_(clock),
        timeout_(limits.timeout),
        workers_(std::make_unique<WorkerPool>(limits.threads)) {}
  ~AttachQueue() { Close(); }

  // Runs `inspect` on a thread of the queue; `done` gets the result, once, on any thread. The limits on
  // concurrent inspections are in AttachLimits; `file_system` is any name that identifies the file system.
  // DEADLINE_EXCEEDED, reason FILE_SYSTEM_HANGS, when `inspect` has not returned within the timeout; it may
  // still be running then. RESOURCE_EXHAUSTED, reason LIMIT_EXCEEDED, when too many of this user wait, unless
  // `any_number`.
  void Submit(uid_t uid, const std::string& file_system, Inspect inspect, Done done, bool any_number = false);
  // For attaches from now on.
  void SetTimeout(Duration timeout);
  // Answers the attaches whose timeout has passed. Call it about once a second.
  void Expire();
  // Waits for the inspections that run. Waiting and later ones fail with UNAVAILABLE, reason DRAINING.
  void Close();

 private:
  struct Attach {
    uid_t uid = 0;
    std::string file_system;
    Inspect inspect;
    Done done;  // Empty once it is answered.
    Duration timeout{};
    Instant deadline;
    bool running = false;
  };
  void Run(const std::shared_ptr<Attach>& attach);
  void StartReady() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const AttachLimits limits_;  // But for the timeout.
  Clock* const clock_;
  Mutex mutex_;
  Duration timeout_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<std::shared_ptr<Attach>> attaches_
      ABSL_GUARDED_BY(mutex_);           // Oldest first, running ones included.
  std::unique_ptr<WorkerPool> workers_;  // Null once closed.
};

// Returns the device number ("8:1") of the file system of a descriptor, without asking a file server, which
// may not answer.
std::string FileSystemOf(int descriptor);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ATTACH_ATTACH_QUEUE_H_
