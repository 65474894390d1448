#include "daemon/attach/attach_queue.h"

#include <fcntl.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "storage/base/errors.h"
#include "storage/base/unique_fd.h"
#include "tests/testing/fake_clock.h"

namespace ckptd {
namespace {

using std::chrono::seconds;

constexpr uid_t kAna = 1000, kBen = 2000;

class AttachQueueTest : public ::testing::Test {
 protected:
  ~AttachQueueTest() override { thaw_.set_value(); }

  // Attaches a root on a file system that hangs until the end of the test, or on one that does not.
  std::shared_future<absl::Status> Attach(uid_t uid, const std::string& file_system, bool hangs = false) {
    auto answer = std::make_shared<std::promise<absl::Status>>();
    queue_->Submit(
        uid, file_system,
        [hangs, thawed = thawed_]() -> absl::StatusOr<RootAttachment> {
          if (hangs) thawed.wait();
          return RootAttachment();
        },
        [answer](absl::StatusOr<RootAttachment> attachment) { answer->set_value(attachment.status()); });
    return answer->get_future().share();
  }
  static bool IsAnswered(const std::shared_future<absl::Status>& answer, seconds timeout = seconds(0)) {
    return answer.wait_for(timeout) == std::future_status::ready;
  }

  std::promise<void> thaw_;
  std::shared_future<void> thawed_ = thaw_.get_future().share();
  FakeClock clock_;
  std::unique_ptr<AttachQueue> queue_ =
      std::make_unique<AttachQueue>(AttachLimits{.waiting_per_uid = 20, .threads = 16}, &clock_);
};

TEST_F(AttachQueueTest, HungFileSystemDoesNotBlockAnotherOne) {
  for (int i = 0; i < 20; ++i) Attach(kAna, "0:1", /*hangs=*/true);
  const auto own = Attach(kAna, "0:2"), others = Attach(kBen, "0:1"), healthy = Attach(kBen, "0:2");
  for (const auto& answer : {own, others, healthy}) {
    ASSERT_TRUE(IsAnswered(answer, seconds(20)));
    EXPECT_TRUE(answer.get().ok()) << answer.get();
  }
}

TEST_F(AttachQueueTest, HungFileSystemsOfOneUserDoNotBlockAnotherUser) {
  for (int i = 0; i < 20; ++i) Attach(kAna, "0:" + std::to_string(i), /*hangs=*/true);
  const auto answer = Attach(kBen, "0:100");
  ASSERT_TRUE(IsAnswered(answer, seconds(20)));
  EXPECT_TRUE(answer.get().ok()) << answer.get();
}

TEST_F(AttachQueueTest, FailsAtTheDeadlineWhenAFileSystemHangs) {
  std::vector<std::shared_future<absl::Status>> answers;
  for (int i = 0; i < 4; ++i) answers.push_back(Attach(kAna, "0:1", /*hangs=*/true));
  clock_.Advance(seconds(29));
  queue_->Expire();
  for (const auto& answer : answers) EXPECT_FALSE(IsAnswered(answer));
  clock_.Advance(seconds(2));
  queue_->Expire();
  for (const auto& answer : answers) {  // Running and waiting ones.
    ASSERT_TRUE(IsAnswered(answer));
    EXPECT_EQ(ReasonOf(answer.get()), "FILE_SYSTEM_HANGS");
    EXPECT_EQ(answer.get().code(), absl::StatusCode::kDeadlineExceeded);
  }
}

TEST_F(AttachQueueTest, ANewTimeoutCountsForLaterAttaches) {
  const auto before = Attach(kAna, "0:1", /*hangs=*/true);
  queue_->SetTimeout(seconds(5));
  const auto after = Attach(kAna, "0:1", /*hangs=*/true);
  clock_.Advance(seconds(6));
  queue_->Expire();
  EXPECT_FALSE(IsAnswered(before));
  ASSERT_TRUE(IsAnswered(after));
  EXPECT_NE(std::string(after.get().message()).find("within 5 s"), std::string::npos) << after.get();
}

TEST_F(AttachQueueTest, RefusesAUserWithTooManyWaitingAttaches) {
  for (int i = 0; i < 22; ++i) Attach(kAna, "0:1", /*hangs=*/true);  // Two run, twenty wait.
  const auto refused = Attach(kAna, "0:2");
  ASSERT_TRUE(IsAnswered(refused, seconds(20)));
  EXPECT_EQ(ReasonOf(refused.get()), "LIMIT_EXCEEDED");
  EXPECT_TRUE(IsAnswered(Attach(kBen, "0:2"), seconds(20)));
}

TEST_F(AttachQueueTest, RunsTheNextAttachWhenOneEnds) {
  std::vector<std::shared_future<absl::Status>> answers;
  for (int i = 0; i < 10; ++i) answers.push_back(Attach(kAna, "0:1"));
  for (const auto& answer : answers) {
    ASSERT_TRUE(IsAnswered(answer, seconds(20)));
    EXPECT_TRUE(answer.get().ok()) << answer.get();
  }
}

TEST(FileSystemOfTest, GivesEachFileSystemItsOwnName) {
  const UniqueFd root(::open("/", O_PATH | O_DIRECTORY | O_CLOEXEC)),
      proc(::open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC));
  EXPECT_NE(FileSystemOf(root.get()), FileSystemOf(proc.get()));
  EXPECT_EQ(FileSystemOf(proc.get()), FileSystemOf(proc.get()));
}

}  // namespace
}  // namespace ckptd
