// UploadRate bounds the bytes that all uploads of the daemon send in a second.
#ifndef CKPTD_DAEMON_UPLOAD_UPLOAD_RATE_H_
#define CKPTD_DAEMON_UPLOAD_UPLOAD_RATE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "storage/base/clock.h"
#include "storage/base/mutex.h"

namespace ckptd {

// Thread-safe.
class UploadRate {
 public:
  explicit UploadRate(int64_t bytes_per_second) : bytes_per_second_(bytes_per_second) {}  // 0: no bound.

  // Waits until these bytes may be sent. CANCELLED after Stop, at once.
  absl::Status Admit(int64_t bytes);
  void Stop();
  bool is_stopped() const;

 private:
  const int64_t bytes_per_second_;
  mutable Mutex mutex_;
  CondVar changed_;
  bool is_stopped_ ABSL_GUARDED_BY(mutex_) = false;
  Instant free_at_ ABSL_GUARDED_BY(mutex_) = Instant{};  // When what was admitted has had its time.
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_UPLOAD_UPLOAD_RATE_H_
