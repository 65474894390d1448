// A thread that runs posted callbacks in order, and a periodic tick.
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
  ~EventLoop();  // Runs the callbacks that were posted before, then ends the thread.

  void Post(absl::AnyInvocable<void()> work);  // Thread-safe.
  // `tick` runs on the loop's thread at least every `interval`, from Start on.
  void Start(absl::AnyInvocable<void()> tick, Duration interval);
  // Turns of the loop since the start. The watchdog reads it to see that the thread is alive.
  int64_t turns() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_BASE_EVENT_LOOP_H_
