// Posts to an event loop that may end before the caller: after Close, posted callbacks are dropped.
#ifndef CKPTD_DAEMON_BASE_LOOP_GATE_H_
#define CKPTD_DAEMON_BASE_LOOP_GATE_H_

#include <utility>

#include "absl/functional/any_invocable.h"
#include "daemon/base/event_loop.h"
#include "storage/base/mutex.h"

namespace ckptd {

// Thread-safe.
class LoopGate {
 public:
  explicit LoopGate(EventLoop* loop) : loop_(loop) {}

  void Post(absl::AnyInvocable<void()> work) {
    MutexLock lock(mutex_);
    if (loop_ != nullptr) loop_->Post(std::move(work));
  }
  // Call it before the loop is destroyed.
  void Close() {
    MutexLock lock(mutex_);
    loop_ = nullptr;
  }

 private:
  Mutex mutex_;
  EventLoop* loop_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_BASE_LOOP_GATE_H_
