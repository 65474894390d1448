#include "storage/base/clock.h"

namespace ckptd {
namespace {

class RealClock : public Clock {
 public:
  Instant Now() override { return std::chrono::steady_clock::now(); }
  int64_t UnixMicros() override {
    return std::chrono::duration_cast<std::chrono::microseconds>(
               std::chrono::system_clock::now().time_since_epoch())
        .count();
  }
};

}  // namespace

Clock& SystemClock() {
  static RealClock& clock = *new RealClock;
  return clock;
}

}  // namespace ckptd
