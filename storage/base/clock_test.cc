#include "storage/base/clock.h"

#include <ctime>

#include "gtest/gtest.h"
#include "tests/testing/fake_clock.h"

namespace ckptd {
namespace {

TEST(ClockTest, SystemClockGoesForward) {
  const Instant first = SystemClock().Now();
  Instant later = first;
  while (later == first) later = SystemClock().Now();
  EXPECT_GT(later, first);
}

TEST(ClockTest, SystemDateIsInMicroseconds) {
  // Not std::time, which may be some milliseconds behind.
  const auto seconds = [] {
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    return static_cast<int64_t>(now.tv_sec);
  };
  const int64_t before = seconds();
  const int64_t micros = SystemClock().UnixMicros();
  const int64_t after = seconds();
  EXPECT_GE(micros / 1'000'000, before);
  EXPECT_LE(micros / 1'000'000, after);
}

TEST(ClockTest, FakeClockStandsStillUntilItIsAdvanced) {
  FakeClock clock;
  const Instant begin = clock.Now();
  const int64_t date = clock.UnixMicros();
  EXPECT_EQ(clock.Now(), begin);
  clock.Advance(std::chrono::seconds(90));
  EXPECT_EQ(clock.Now() - begin, std::chrono::seconds(90));
  EXPECT_EQ(clock.UnixMicros() - date, 90'000'000);
}

TEST(ClockTest, DateThatIsSetBackDoesNotMoveDeadlines) {
  FakeClock clock;
  const Instant begin = clock.Now();
  const int64_t date = clock.UnixMicros();
  clock.StepDate(-std::chrono::hours(1));
  EXPECT_EQ(clock.Now(), begin);
  EXPECT_EQ(clock.UnixMicros() - date, -3'600'000'000);
}

}  // namespace
}  // namespace ckptd
