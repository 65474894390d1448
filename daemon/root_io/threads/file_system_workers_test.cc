#include "daemon/root_io/threads/file_system_workers.h"

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/fake_clock.h"

namespace ckptd {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class FileSystemWorkersTest : public testing::Test {
 protected:
  FileSystemWorkersTest() {
    workers_ =
        FileSystemWorkers::Start("0:0", PartWriterOptions(), std::make_shared<ChecksumPool>(1), &clock_)
            .value();
  }
  ~FileSystemWorkersTest() override {
    workers_->BeginEnd();
    EXPECT_TRUE(workers_->WaitEnded(SystemClock().Now() + seconds(30)));
  }

  // Blocks the metadata worker, like a file system that hangs, until `hang` is set.
  void Hang(std::promise<void>& hang) {
    std::promise<void> begun;
    workers_->PostUrgent([&begun, released = hang.get_future().share()] {
      begun.set_value();
      released.wait();
    });
    begun.get_future().wait();
  }

  FakeClock clock_;
  std::shared_ptr<FileSystemWorkers> workers_;
};

TEST_F(FileSystemWorkersTest, RunsUrgentWorkFirstAndInOrder) {
  std::vector<std::string> order;
  std::promise<void> hang, done;
  Hang(hang);
  workers_->PostIdle([&] { order.push_back("idle 1"); });
  workers_->PostUrgent([&] { order.push_back("urgent 1"); });
  workers_->PostIdle([&] {
    order.push_back("idle 2");
    done.set_value();
  });
  workers_->PostUrgent([&] { order.push_back("urgent 2"); });
  hang.set_value();
  ASSERT_EQ(done.get_future().wait_for(seconds(30)), std::future_status::ready);
  EXPECT_THAT(order, testing::ElementsAre("urgent 1", "urgent 2", "idle 1", "idle 2"));
}

TEST_F(FileSystemWorkersTest, RunsLaterWorkWhenItIsDueAndBeforeIdleWork) {
  std::vector<std::string> order;
  const auto run = [&](const std::string& name) {
    std::promise<void> done;
    workers_->PostIdle([&] {
      order.push_back(name);
      done.set_value();
    });
    ASSERT_EQ(done.get_future().wait_for(seconds(30)), std::future_status::ready);
  };
  workers_->PostLater(seconds(20), [&] { order.push_back("after 20 s"); });
  workers_->PostLater(seconds(10), [&] { order.push_back("after 10 s"); });
  run("at once");
  clock_.Advance(seconds(10));
  run("10 s later");
  clock_.Advance(seconds(10));
  run("20 s later");
  EXPECT_THAT(order, testing::ElementsAre("at once", "after 10 s", "10 s later", "after 20 s", "20 s later"));
}

TEST_F(FileSystemWorkersTest, WakesForLaterWork) {
  std::promise<void> done;
  auto workers =
      FileSystemWorkers::Start("0:1", PartWriterOptions(), std::make_shared<ChecksumPool>(1), &SystemClock())
          .value();
  workers->PostLater(milliseconds(1), [&] { done.set_value(); });
  EXPECT_EQ(done.get_future().wait_for(seconds(30)), std::future_status::ready);
  workers->PostLater(std::chrono::hours(1), [] { ADD_FAILURE() << "it is not due"; });
  workers->BeginEnd();
  EXPECT_TRUE(workers->WaitEnded(SystemClock().Now() + seconds(30)))
      << "it does not wait for what is not due";
}

TEST_F(FileSystemWorkersTest, ReportsSinceWhenAnOperationIsPending) {
  std::promise<void> idle;
  workers_->PostIdle([&] { idle.set_value(); });
  idle.get_future().wait();
  clock_.Advance(seconds(5));
  std::promise<void> hang;
  const Instant begun = clock_.Now();
  Hang(hang);
  clock_.Advance(seconds(60));
  workers_->PostUrgent([] {});  // Queued work does not change since when.
  EXPECT_EQ(workers_->pending_since(), begun);

  std::promise<void> later, release;
  workers_->PostUrgent([&later, released = release.get_future().share()] {
    later.set_value();
    released.wait();
  });
  hang.set_value();
  later.get_future().wait();
  EXPECT_EQ(workers_->pending_since(), clock_.Now());
  release.set_value();
}

TEST_F(FileSystemWorkersTest, EndsAfterUrgentWorkWithoutIdleWork) {
  std::vector<std::string> order;
  std::promise<void> hang;
  Hang(hang);
  workers_->PostIdle([&] { order.push_back("idle"); });
  workers_->PostUrgent([&] { order.push_back("urgent"); });
  workers_->BeginEnd();
  hang.set_value();
  ASSERT_TRUE(workers_->WaitEnded(SystemClock().Now() + seconds(30)));
  EXPECT_THAT(order, testing::ElementsAre("urgent"));
  auto owned = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = owned;
  workers_->PostUrgent([owned = std::move(owned)] {});
  EXPECT_TRUE(watch.expired());  // The work is destroyed.
}

TEST_F(FileSystemWorkersTest, AbandonsAHungFileSystemAtTheDeadline) {
  std::promise<void> hang;
  Hang(hang);
  workers_->BeginEnd();
  const Instant before = SystemClock().Now();
  EXPECT_FALSE(workers_->WaitEnded(before + milliseconds(50)));
  EXPECT_LT(SystemClock().Now() - before, seconds(20));
  hang.set_value();  // The detached thread ends later.
}

TEST(WriteProgressTest, IsStuckOnlyWhenNoWriteMakesProgress) {
  FakeClock clock;
  WriteProgress progress(&clock);
  EXPECT_EQ(progress.StuckSince(), std::nullopt);
  auto slow = std::make_shared<std::atomic<int64_t>>(0);
  auto fast = std::make_shared<std::atomic<int64_t>>(0);
  const Instant begun = clock.Now();
  auto first = progress.Begin(slow);
  clock.Advance(seconds(3));
  auto second = progress.Begin(fast);
  EXPECT_EQ(progress.StuckSince(), begun);  // A new write is no progress of the earlier ones.
  clock.Advance(seconds(3));
  fast->fetch_add(1);
  const Instant moved = clock.Now();
  EXPECT_EQ(progress.StuckSince(), moved);
  clock.Advance(seconds(3));
  EXPECT_EQ(progress.StuckSince(), moved);
  progress.End(second);
  EXPECT_EQ(progress.StuckSince(), clock.Now());
  progress.End(first);
  EXPECT_EQ(progress.StuckSince(), std::nullopt);
  clock.Advance(seconds(3));
  progress.Begin(slow);
  EXPECT_EQ(progress.StuckSince(), clock.Now());
}

}  // namespace
}  // namespace ckptd
