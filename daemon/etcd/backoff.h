// The wait before the retry of a request that etcd has not answered, or has refused for the moment.
#ifndef CKPTD_DAEMON_ETCD_BACKOFF_H_
#define CKPTD_DAEMON_ETCD_BACKOFF_H_

#include <algorithm>
#include <chrono>

#include "storage/base/clock.h"

namespace ckptd {

// Each failure in a row doubles the wait, from `shortest` up to `longest`.
class Backoff {
 public:
  explicit Backoff(Duration shortest = std::chrono::milliseconds(100),
                   Duration longest = std::chrono::seconds(5))
      : shortest_(shortest), longest_(longest), wait_(shortest) {}

  void Failed(Instant now) {
    next_ = now + wait_;
    wait_ = std::min(2 * wait_, longest_);
  }
  void Succeeded() {
    next_ = Instant();
    wait_ = shortest_;
  }
  bool IsOver(Instant now) const { return now >= next_; }

 private:
  const Duration shortest_, longest_;
  Duration wait_;
  Instant next_{};
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ETCD_BACKOFF_H_
