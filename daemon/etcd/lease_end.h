// When a lease of etcd ends, for threads that do not own it.
#ifndef CKPTD_DAEMON_ETCD_LEASE_END_H_
#define CKPTD_DAEMON_ETCD_LEASE_END_H_

#include <atomic>
#include <cstdint>

#include "storage/base/clock.h"

namespace ckptd {

// Thread-safe. The owner of the lease moves the end; once it is over, it stays over.
class LeaseEnd {
 public:
  // `clock` must outlive it.
  explicit LeaseEnd(Clock* clock) : clock_(clock) {}

  void Set(Instant ends) { ends_.store(ends.time_since_epoch().count(), std::memory_order_relaxed); }
  bool IsOver() const {
    return clock_->Now().time_since_epoch().count() >= ends_.load(std::memory_order_relaxed);
  }

 private:
  Clock* const clock_;
  std::atomic<Instant::rep> ends_ = Instant::min().time_since_epoch().count();
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ETCD_LEASE_END_H_
