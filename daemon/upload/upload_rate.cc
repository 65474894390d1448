#include "daemon/upload/upload_rate.h"

#include <algorithm>
#include <chrono>

namespace ckptd {

absl::Status UploadRate::Admit(int64_t bytes) {
  MutexLock lock(mutex_);
  if (bytes_per_second_ > 0) {
    const Instant turn = std::max(free_at_, SystemClock().Now());
    const std::chrono::duration<double> takes(static_cast<double>(bytes) /
                                              static_cast<double>(bytes_per_second_));
    free_at_ = turn + std::chrono::duration_cast<Duration>(takes);
    while (!is_stopped_) {
      const Duration left = turn - SystemClock().Now();
      if (left <= Duration::zero()) break;
      changed_.WaitFor(mutex_, left);
    }
  }
  return is_stopped_ ? absl::CancelledError("the daemon is ending") : absl::OkStatus();
}

void UploadRate::Stop() {
  MutexLock lock(mutex_);
  is_stopped_ = true;
  changed_.SignalAll();
}

bool UploadRate::is_stopped() const {
  MutexLock lock(mutex_);
  return is_stopped_;
}

}  // namespace ckptd
