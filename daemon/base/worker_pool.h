// Threads for work that blocks on somebody's file system, so that gRPC's threads and the engine's do not. One
// that hangs must not hold the others up: while all are busy, more work starts another thread.
#ifndef CKPTD_DAEMON_BASE_WORKER_POOL_H_
#define CKPTD_DAEMON_BASE_WORKER_POOL_H_

#include <deque>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "storage/base/mutex.h"

namespace ckptd {

// Thread-safe.
class WorkerPool {
 public:
  explicit WorkerPool(int max_threads);  // With its first thread.
  ~WorkerPool();                         // Runs what is queued, then ends.
  void Submit(absl::AnyInvocable<void()> work);

 private:
  void Run();

  const int max_threads_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<absl::AnyInvocable<void()>> queue_ ABSL_GUARDED_BY(mutex_);
  size_t idle_ ABSL_GUARDED_BY(mutex_) = 0;  // Threads that wait for work.
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_BASE_WORKER_POOL_H_
