#include "daemon/attach/root_retries.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>

#include "storage/base/errors.h"

namespace ckptd {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

class RootRetriesTest : public ::testing::Test {
 protected:
  RootRetriesTest() {
    root_.set_path("/data/ckpts");
    root_.set_uid(1000);
    root_.set_inode(7);
  }
  Instant At(int seconds) const { return Instant() + std::chrono::hours(1) + std::chrono::seconds(seconds); }

  storage::v1::KnownRoot root_;
  RootRetries retries_;
};

TEST_F(RootRetriesTest, RetriesAnUnreadableRootWithBackoff) {
  int now = 0;
  for (const int wait : {1, 2, 4, 8, 16, 32, 60, 60}) {
    ASSERT_TRUE(retries_.Ended(root_, Annotate(ErrnoError(EIO, "reading"), "opening"), At(now)));
    EXPECT_THAT(retries_.TakeDue(At(now + wait - 1)), IsEmpty()) << wait;
    now += wait;
    ASSERT_THAT(retries_.TakeDue(At(now)), SizeIs(1)) << wait;
    EXPECT_THAT(retries_.TakeDue(At(now + 1000)), IsEmpty()) << "an attempt is under way";
  }
  EXPECT_EQ(retries_.failures(root_), 8);
}

TEST_F(RootRetriesTest, ForgetsARootThatIsRecoveredOrFailsForGood) {
  for (const absl::Status& end :
       {absl::OkStatus(),
        MakeError(absl::StatusCode::kFailedPrecondition, "ROOT_UNREADABLE", "a torn record"),
        ErrnoError(ENOENT, "opening")}) {
    ASSERT_TRUE(retries_.Ended(root_, ErrnoError(ENODEV, "opening"), At(0)));
    EXPECT_THAT(retries_.TakeDue(At(1)), SizeIs(1));
    EXPECT_FALSE(retries_.Ended(root_, end, At(1)));
    EXPECT_THAT(retries_.TakeDue(At(1000)), IsEmpty());
    EXPECT_EQ(retries_.failures(root_), 0);
  }
}

}  // namespace
}  // namespace ckptd
