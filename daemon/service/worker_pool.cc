#include "daemon/service/worker_pool.h"

#include <pthread.h>

#include <utility>

namespace ckptd {

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
  if (queue_.size() > idle_ && static_cast<int>(threads_.size()) < max_threads_) {
    threads_.emplace_back([this] {
      ::pthread_setname_np(::pthread_self(), "ckptd-worker");
      Run();
    });
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
