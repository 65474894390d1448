#include "daemon/base/worker_pool.h"

#include <utility>

#include "absl/status/statusor.h"
#include "storage/base/start_thread.h"

namespace ckptd {

WorkerPool::WorkerPool(int max_threads) : max_threads_(max_threads) {
  threads_.emplace_back([this] { Run(); });
}

WorkerPool::~WorkerPool() {
  std::vector<std::thread> threads;
  {
    MutexLock lock(mutex_);
    ending_ = true;
    threads.swap(threads_);
  }
  changed_.SignalAll();
  for (std::thread& thread : threads) thread.join();
}

void WorkerPool::Submit(absl::AnyInvocable<void()> work) {
  MutexLock lock(mutex_);
  queue_.push_back(std::move(work));
  if (queue_.size() > idle_ && static_cast<int>(threads_.size()) < max_threads_ && !ending_) {
    absl::StatusOr<std::thread> thread = StartThread("ckptd-worker", [this] { Run(); });
    // If no thread can be started, the existing ones run the work; there is at least one.
    if (thread.ok()) threads_.push_back(*std::move(thread));
  }
  changed_.Signal();
}

void WorkerPool::Run() {
  while (true) {
    absl::AnyInvocable<void()> work;
    {
      MutexLock lock(mutex_);
      ++idle_;
      while (queue_.empty() && !ending_) changed_.Wait(mutex_);
      --idle_;
      if (queue_.empty()) return;
      work = std::move(queue_.front());
      queue_.pop_front();
    }
    work();
  }
}

}  // namespace ckptd
