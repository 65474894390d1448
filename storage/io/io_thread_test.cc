#include <pthread.h>
#include <sys/syscall.h>

#include <atomic>
#include <cerrno>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/base/errors.h"
#include "storage/io/io_queue.h"
#include "storage/io/part_writer.h"
#include "tests/testing/seccomp.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;

absl::StatusOr<std::unique_ptr<IoQueue>> MakeQueue() { return MakeThreadQueue(1); }

std::string ThreadName() {
  char name[16] = {};
  EXPECT_EQ(::pthread_getname_np(::pthread_self(), name, sizeof(name)), 0);
  return name;
}

TEST(IoThreadTest, RunsWhatIsPostedInOrderOnItsNamedThread) {
  std::vector<int> order;
  std::string name;
  {
    auto thread = IoThread::Start("io-of-a-long-name", &MakeQueue);
    ASSERT_TRUE(thread.ok()) << thread.status();
    for (int i = 0; i < 3; ++i) {
      (*thread)->Post([&, i](IoQueue& queue) {
        EXPECT_EQ(queue.name(), "threads");
        order.push_back(i);
        name = ThreadName();
      });
    }
  }
  EXPECT_THAT(order, ElementsAre(0, 1, 2)) << "its end runs what was posted before";
  EXPECT_EQ(name, "io-of-a-long-na");
}

TEST(IoThreadTest, RunsWhatIsPostedFromItsOwnThread) {
  std::promise<void> ran;
  auto thread = IoThread::Start("io", &MakeQueue);
  ASSERT_TRUE(thread.ok()) << thread.status();
  (*thread)->Post([&](IoQueue&) { (*thread)->Post([&](IoQueue&) { ran.set_value(); }); });
  EXPECT_EQ(ran.get_future().wait_for(std::chrono::seconds(30)), std::future_status::ready);
}

TEST(IoThreadTest, ReportsAQueueThatCannotBeMade) {
  const auto thread = IoThread::Start("io", [] { return MakeThreadQueue(0); });
  EXPECT_EQ(thread.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ChecksumPoolTest, DestructorRunsWhatIsQueued) {
  std::atomic<int> ran = 0;
  {
    ChecksumPool pool(2);
    for (int i = 0; i < 100; ++i) pool.Submit([&] { ++ran; });
  }
  EXPECT_EQ(ran, 100);
}

TEST(ChecksumPoolTest, ThreadsRunConcurrentlyAndHaveNames) {
  ChecksumPool pool(2);
  std::promise<void> first_runs;
  std::promise<void> second_runs;
  std::promise<std::string> name;
  // Each waits until the other runs.
  pool.Submit([&] {
    first_runs.set_value();
    second_runs.get_future().wait();
    name.set_value(ThreadName());
  });
  pool.Submit([&] {
    first_runs.get_future().wait();
    second_runs.set_value();
  });
  EXPECT_EQ(name.get_future().get().substr(0, 10), "ckptd-crc-");
}

TEST(IoThreadTest, ReportsAThreadThatCannotBeStarted) {
  absl::Status io = absl::OkStatus(), queue = absl::OkStatus();
  const bool filtered = WithoutSystemCall(SYS_clone3, EAGAIN, [&] {
    io = IoThread::Start("io", [] { return MakeThreadQueue(1); }).status();
    queue = MakeThreadQueue(2).status();
  });
  if (!filtered) GTEST_SKIP() << "no filter of system calls here";
  EXPECT_EQ(ErrnoOf(io), EAGAIN) << io;
  EXPECT_EQ(ErrnoOf(queue), EAGAIN) << queue;
}

}  // namespace
}  // namespace ckptd