#include "daemon/base/worker_pool.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>

#include <atomic>
#include <cerrno>
#include <future>

#include "tests/testing/seccomp.h"

namespace ckptd {
namespace {

TEST(WorkerPool, RunsQueuedWorkBeforeItEnds) {
  std::atomic<int> ran = 0;
  {
    WorkerPool pool(2);
    for (int i = 0; i < 100; ++i) pool.Submit([&ran] { ++ran; });
  }
  EXPECT_EQ(ran, 100);
}

TEST(WorkerPool, HungWorkDoesNotDelayOtherWork) {
  std::promise<void> thaw;
  std::shared_future<void> thawed(thaw.get_future());
  WorkerPool pool(5);
  for (int i = 0; i < 4; ++i) pool.Submit([thawed] { thawed.wait(); });
  std::promise<void> healthy;
  pool.Submit([&healthy] { healthy.set_value(); });
  EXPECT_EQ(healthy.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
  thaw.set_value();
}

TEST(WorkerPool, RunsWorkOnExistingThreadsWhenNoneCanBeStarted) {
  std::atomic<int> ran = 0;
  {
    WorkerPool pool(8);
    const bool filtered = WithoutSystemCall(SYS_clone3, EAGAIN, [&] {
      for (int i = 0; i < 100; ++i) pool.Submit([&ran] { ++ran; });
    });
    if (!filtered) GTEST_SKIP() << "no filter of system calls here";
  }
  EXPECT_EQ(ran, 100);
}

}  // namespace
}  // namespace ckptd
