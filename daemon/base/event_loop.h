// A thread that runs what is posted to it, in order, and a tick.
#ifndef CKPTD_DAEMON_BASE_EVENT_LOOP_H_
#define CKPTD_DAEMON_BASE_EVENT_LOOP_H_

#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "storage/base/clock.h"

namespace ckptd {

class EventLoop {
 public:
  explicit EventLoop(std::string thread_name);
  ~EventLoop();  // Runs what was posted before, then ends.

  void Post(absl::AnyInvocable<void()> work);  // Thread-safe.
  // `tick` runs on the loop's thread at least every `interval`, from Start on.
  void Start(absl::AnyInvocable<void()> tick, Duration interval);
  // Turns since the start: the watchdog sees that it lives.
  int64_t turns() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_BASE_EVENT_LOOP_H_
