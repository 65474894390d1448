// Tests the errors of an unavailable io_uring. The rest is in tests/contract/io_queue_contract_test.cc.
#include <sys/syscall.h>

#include <cerrno>
#include <string>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/base/errors.h"
#include "storage/io/io_queue.h"
#include "tests/testing/seccomp.h"

namespace ckptd {
namespace {

using ::testing::HasSubstr;

absl::Status WithoutRings(unsigned error) {
  absl::Status status;
  EXPECT_TRUE(WithoutSystemCall(SYS_io_uring_setup, error, [&] { status = MakeUringQueue(8).status(); }));
  return status;
}

TEST(UringQueueTest, NamesTheCauseWhenIoUringIsForbidden) {
  const absl::Status status = WithoutRings(EPERM);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(status), "IO_URING_UNAVAILABLE");
  EXPECT_THAT(std::string(status.message()), HasSubstr("forbidden"));
}

TEST(UringQueueTest, NamesAKernelWithoutIoUring) {
  const absl::Status status = WithoutRings(ENOSYS);
  EXPECT_EQ(ReasonOf(status), "IO_URING_UNAVAILABLE");
  EXPECT_THAT(std::string(status.message()), HasSubstr("kernel"));
}

TEST(UringQueueTest, NamesTooLittleMemoryForARing) {
  const absl::Status status = WithoutRings(ENOMEM);
  EXPECT_EQ(ReasonOf(status), "IO_URING_UNAVAILABLE");
  EXPECT_THAT(std::string(status.message()), HasSubstr("locked memory"));
}

}  // namespace
}  // namespace ckptd
