#include <pthread.h>

#include <deque>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "storage/base/mutex.h"
#include "storage/io/part_writer.h"

namespace ckptd {

class ChecksumPool::Impl {
 public:
  explicit Impl(int threads) {
    for (int i = 0; i < threads; ++i) {
      threads_.emplace_back([this] { Work(); });
      ::pthread_setname_np(threads_.back().native_handle(), absl::StrCat("ckptd-crc-", i).c_str());
    }
  }

  ~Impl() {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      changed_.SignalAll();
    }
    for (std::thread& thread : threads_) thread.join();
  }

  void Submit(absl::AnyInvocable<void()> work) {
    MutexLock lock(mutex_);
    queue_.push_back(std::move(work));
    changed_.Signal();
  }

 private:
  void Work() {
    MutexLock lock(mutex_);
    for (;;) {
      while (queue_.empty() && !stopping_) changed_.Wait(mutex_);
      if (queue_.empty()) return;
      absl::AnyInvocable<void()> work = std::move(queue_.front());
      queue_.pop_front();
      mutex_.Unlock();
      work();
      work = nullptr;
      mutex_.Lock();
    }
  }

  std::vector<std::thread> threads_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<absl::AnyInvocable<void()>> queue_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

ChecksumPool::ChecksumPool(int threads) : impl_(std::make_unique<Impl>(threads)) {}
ChecksumPool::~ChecksumPool() = default;
void ChecksumPool::Submit(absl::AnyInvocable<void()> work) { impl_->Submit(std::move(work)); }

}  // namespace ckptd
