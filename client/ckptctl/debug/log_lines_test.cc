#include "client/ckptctl/debug/log_lines.h"

#include <gtest/gtest.h>

namespace ckptd::ctl {
namespace {

TEST(OutputOfTest, ReturnsWhatTheProgramWrites) {
  EXPECT_EQ(OutputOf({"/bin/sh", "-c", "echo out; echo err >&2"}).value(), "out\nerr\n");
}

TEST(OutputOfTest, FailsWithTheMessageOfTheProgram) {
  const auto failed = OutputOf({"/bin/sh", "-c", "echo no such unit; exit 3"});
  EXPECT_EQ(failed.status().message(), "/bin/sh failed: no such unit");
  EXPECT_TRUE(absl::IsNotFound(OutputOf({"no-such-program"}).status()));
}

TEST(OutputOfTest, EndsAProgramThatHangs) {
  EXPECT_TRUE(absl::IsDeadlineExceeded(OutputOf({"/bin/sleep", "60"}, 100).status()));
}

TEST(OutputOfTest, EndsAProgramThatWritesWithoutEnd) {
  EXPECT_LT(OutputOf({"/bin/cat", "/dev/zero"}).value().size(), size_t{5} << 20);
}

}  // namespace
}  // namespace ckptd::ctl
