#include "daemon/base/event_loop.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <thread>
#include <utility>

#include "storage/base/mutex.h"

namespace ckptd {

class EventLoop::Impl {
 public:
  explicit Impl(const std::string& name) : thread_([this] { Run(); }) {
    pthread_setname_np(thread_.native_handle(), name.substr(0, 15).c_str());
  }

  ~Impl() {
    {
      MutexLock lock(mutex_);
      ending_ = true;
      changed_.Signal();
    }
    thread_.join();
  }

  void Post(absl::AnyInvocable<void()> work) {
    MutexLock lock(mutex_);
    posted_.push_back(std::move(work));
    changed_.Signal();
  }

  int64_t turns() const { return turns_.load(std::memory_order_relaxed); }

  void Start(absl::AnyInvocable<void()> tick, Duration interval) {
    Post([this, tick = std::move(tick), interval]() mutable {
      tick_ = std::move(tick);
      interval_ = interval;
      next_tick_ = SystemClock().Now();
    });
  }

 private:
  void Run() {
    while (true) {
      turns_.fetch_add(1, std::memory_order_relaxed);
      std::deque<absl::AnyInvocable<void()>> batch;
      bool ending = false;
      {
        MutexLock lock(mutex_);
        if (posted_.empty() && !ending_) Wait();
        batch.swap(posted_);
        ending = ending_;
      }
      for (; !batch.empty(); batch.pop_front()) {
        std::exchange(batch.front(), nullptr)();
        TickIfDue();  // Between callbacks, too, so that a full queue does not delay the tick.
      }
      if (ending) return;
      TickIfDue();
    }
  }

  void Wait() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!tick_) return changed_.Wait(mutex_);
    const Duration left = next_tick_ - SystemClock().Now();
    if (left > Duration::zero()) changed_.WaitFor(mutex_, left);
  }

  void TickIfDue() {
    if (!tick_ || SystemClock().Now() < next_tick_) return;
    tick_();
    next_tick_ = SystemClock().Now() + interval_;
    turns_.fetch_add(1, std::memory_order_relaxed);
  }

  Mutex mutex_;
  CondVar changed_;
  std::deque<absl::AnyInvocable<void()>> posted_ ABSL_GUARDED_BY(mutex_);
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::atomic<int64_t> turns_{0};

  // Used on the loop's thread only.
  absl::AnyInvocable<void()> tick_;
  Duration interval_{};
  Instant next_tick_{};

  std::thread thread_;  // Declared last: it uses all members above.
};

EventLoop::EventLoop(std::string thread_name) : impl_(std::make_unique<Impl>(thread_name)) {}
EventLoop::~EventLoop() = default;
void EventLoop::Post(absl::AnyInvocable<void()> work) { impl_->Post(std::move(work)); }
void EventLoop::Start(absl::AnyInvocable<void()> tick, Duration interval) {
  impl_->Start(std::move(tick), interval);
}
int64_t EventLoop::turns() const { return impl_->turns(); }

}  // namespace ckptd
