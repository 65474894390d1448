// The event queue of the simulation. One thread; the clock shows the time of the event that runs.
#ifndef CKPTD_TESTS_SIM_SCHEDULE_H_
#define CKPTD_TESTS_SIM_SCHEDULE_H_

#include <cstdint>
#include <map>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "tests/testing/fake_clock.h"

namespace ckptd::sim {

class Schedule {
 public:
  Schedule() : begin_(clock_.Now()) {}

  FakeClock& clock() { return clock_; }
  Duration elapsed() { return clock_.Now() - begin_; }

  // Events due at the same time run in the order in which they were added.
  void After(Duration delay, absl::AnyInvocable<void()> event) {
    events_.emplace(std::pair(clock_.Now() + delay, next_++), std::move(event));
  }
  bool empty() const { return events_.empty(); }
  void Clear() {
    while (!events_.empty()) std::exchange(events_, {});  // What an event held may have added another one.
  }
  void RunNext() {
    auto first = events_.extract(events_.begin());
    clock_.Advance(first.key().first - clock_.Now());
    first.mapped()();
  }

 private:
  FakeClock clock_;
  const Instant begin_;
  uint64_t next_ = 0;
  std::map<std::pair<Instant, uint64_t>, absl::AnyInvocable<void()>> events_;
};

}  // namespace ckptd::sim
#endif  // CKPTD_TESTS_SIM_SCHEDULE_H_
