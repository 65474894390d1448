// A pool of threads for work that blocks on a file system, so that the threads of gRPC and of the engine do
// not block. Work that hangs must not delay other work: while all threads are busy, new work starts another
// one.
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
  explicit WorkerPool(int max_threads);  // Starts the first thread.
  ~WorkerPool();                         // Runs the queued work, then ends the threads.
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
