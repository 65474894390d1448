// A queue of work for the engine's thread, which in a test is the test's own thread. Fakes and the pool's
// threads post to it.
#ifndef CKPTD_TESTS_TESTING_INBOX_H_
#define CKPTD_TESTS_TESTING_INBOX_H_

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include "absl/functional/any_invocable.h"

namespace ckptd {

class Inbox {
 public:
  // Thread-safe.
  void Post(absl::AnyInvocable<void()> work) {
    std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
    arrived_.notify_one();
  }
  // Returns the oldest work; null if none arrives within `timeout`.
  absl::AnyInvocable<void()> Take(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    if (!arrived_.wait_for(lock, timeout, [&] { return !work_.empty(); })) return nullptr;
    auto work = std::move(work_.front());
    work_.pop_front();
    return work;
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<absl::AnyInvocable<void()>> work_;
};

}  // namespace ckptd
#endif  // CKPTD_TESTS_TESTING_INBOX_H_
