// A clock that stands still until a test moves it.
#ifndef CKPTD_TESTS_TESTING_FAKE_CLOCK_H_
#define CKPTD_TESTS_TESTING_FAKE_CLOCK_H_

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "storage/base/clock.h"
#include "storage/base/mutex.h"

namespace ckptd {

// Thread-safe. Starts one hour after the epoch of Instant, at 2026-01-01 00:00 UTC.
class FakeClock : public Clock {
 public:
  Instant Now() override {
    MutexLock lock(mutex_);
    return Instant() + elapsed_;
  }
  int64_t UnixMicros() override {
    MutexLock lock(mutex_);
    return kBeginUnixMicros +
           std::chrono::duration_cast<std::chrono::microseconds>(elapsed_ - kBegin + date_step_).count();
  }

  void Advance(Duration by) {
    MutexLock lock(mutex_);
    elapsed_ += by;
  }
  // Changes the machine's date, forwards or back: UnixMicros steps, Now does not.
  void StepDate(Duration by) {
    MutexLock lock(mutex_);
    date_step_ += by;
  }

 private:
  static constexpr Duration kBegin = std::chrono::hours(1);
  static constexpr int64_t kBeginUnixMicros = 1'767'225'600'000'000;

  Mutex mutex_;
  Duration elapsed_ ABSL_GUARDED_BY(mutex_) = kBegin;
  Duration date_step_ ABSL_GUARDED_BY(mutex_) = Duration::zero();
};

}  // namespace ckptd
#endif  // CKPTD_TESTS_TESTING_FAKE_CLOCK_H_
