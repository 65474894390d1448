#include "storage/base/boot_clock.h"

#include <gtest/gtest.h>

namespace ckptd {
namespace {

// What the machine was suspended for is in one and not in the other.
TEST(BootClockTest, IsNeverBehindTheClockThatStopsInSuspension) {
  const Instant running = SystemClock().Now();
  const Instant first = BootClock().Now();
  EXPECT_GE(first, running);
  EXPECT_GE(BootClock().Now(), first);
}

}  // namespace
}  // namespace ckptd
