#include "daemon/runtime/process/exit_guard.h"

#include <gtest/gtest.h>

#include <future>

namespace ckptd {
namespace {

TEST(ExitGuard, DoesNothingWhenTheShutdownEndsInTime) {
  { const ExitGuard guard(std::chrono::seconds(60), "too long"); }
  SUCCEED();
}

TEST(ExitGuardDeathTest, ExitsWithOneWhenTheShutdownHangs) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        const ExitGuard guard(std::chrono::milliseconds(10), "the disk hangs");
        std::promise<void>().get_future().wait_for(std::chrono::seconds(60));
      },
      ::testing::ExitedWithCode(1), "the disk hangs");
}

}  // namespace
}  // namespace ckptd
