#include "storage/base/boot_clock.h"

#include <time.h>

namespace ckptd {
namespace {

class RealBootClock : public Clock {
 public:
  Instant Now() override {
    timespec now = {};
    clock_gettime(CLOCK_BOOTTIME, &now);
    return Instant(std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec));
  }
  int64_t UnixMicros() override { return SystemClock().UnixMicros(); }
};

}  // namespace

Clock& BootClock() {
  static RealBootClock& clock = *new RealBootClock;
  return clock;
}

}  // namespace ckptd
