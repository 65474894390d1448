// A latch with a timeout: waits until a number of events have happened.
#ifndef CKPTD_DAEMON_RUNTIME_START_COUNTDOWN_H_
#define CKPTD_DAEMON_RUNTIME_START_COUNTDOWN_H_

#include <cstddef>

#include "storage/base/clock.h"
#include "storage/base/mutex.h"

namespace ckptd {

// Thread-safe.
class Countdown {
 public:
  explicit Countdown(size_t count) : left_(count) {}
  void Down() {
    MutexLock lock(mutex_);
    --left_;
    changed_.SignalAll();
  }
  // Waits for all events, for `timeout` at most. Returns how many have not happened.
  size_t Wait(Duration timeout) {
    const Instant deadline = SystemClock().Now() + timeout;
    MutexLock lock(mutex_);
    while (left_ > 0) {
      const Duration time = deadline - SystemClock().Now();
      if (time <= Duration::zero()) break;
      changed_.WaitFor(mutex_, time);
    }
    return left_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  size_t left_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_RUNTIME_START_COUNTDOWN_H_
