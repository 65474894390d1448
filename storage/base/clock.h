// Seam: time. Implementations: SystemClock(); for tests tests/testing/fake_clock.h.
#ifndef CKPTD_STORAGE_BASE_CLOCK_H_
#define CKPTD_STORAGE_BASE_CLOCK_H_

#include <chrono>
#include <cstdint>

namespace ckptd {

// A point in time for deadlines. Monotonic; says nothing about the date.
using Instant = std::chrono::time_point<std::chrono::steady_clock, std::chrono::nanoseconds>;
using Duration = std::chrono::nanoseconds;

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual Instant Now() = 0;
  // Unix time in microseconds, for people and records. Never use it for order: it may go back.
  virtual int64_t UnixMicros() = 0;
};

// The machine's clocks. Lives until the process ends.
Clock& SystemClock();

}  // namespace ckptd
#endif  // CKPTD_STORAGE_BASE_CLOCK_H_
