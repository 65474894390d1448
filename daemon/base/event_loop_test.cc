#include "daemon/base/event_loop.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace ckptd {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(EventLoopTest, RunsWorkInTheOrderItWasPostedOnOneThread) {
  std::vector<int> order;
  std::vector<std::thread::id> threads;
  {
    EventLoop loop("test");
    for (int i = 0; i < 1000; ++i) {
      loop.Post([&order, &threads, i] {
        order.push_back(i);
        threads.push_back(std::this_thread::get_id());
      });
    }
  }  // Runs what was posted before it ends.
  ASSERT_EQ(order.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(order[i], i);
  for (const std::thread::id& id : threads) EXPECT_EQ(id, threads[0]);
  EXPECT_NE(threads[0], std::this_thread::get_id());
}

TEST(EventLoopTest, RunsWorkOfManyThreadsExactlyOnce) {
  int count = 0;
  {
    EventLoop loop("test");
    std::vector<std::thread> posters;
    for (int i = 0; i < 4; ++i) {
      posters.emplace_back([&] {
        for (int j = 0; j < 500; ++j) loop.Post([&count] { ++count; });
      });
    }
    for (std::thread& poster : posters) poster.join();
  }
  EXPECT_EQ(count, 2000);
}

TEST(EventLoopTest, TicksWhileNothingIsPosted) {
  EventLoop loop("test");
  std::promise<void> third;
  loop.Start(
      [&, n = 0]() mutable {
        if (++n == 3) third.set_value();
      },
      milliseconds(1));
  EXPECT_EQ(third.get_future().wait_for(seconds(30)), std::future_status::ready);
  EXPECT_GE(loop.turns(), 3);
}

TEST(EventLoopTest, TicksWhileWorkKeepsComing) {
  std::atomic<bool> stop{false};
  std::promise<void> third;
  std::function<void()> again;
  EventLoop loop("test");
  again = [&] {
    if (!stop.load()) loop.Post([&] { again(); });
  };
  loop.Start(
      [&, n = 0]() mutable {
        if (++n == 3) third.set_value();
      },
      milliseconds(1));
  loop.Post([&] { again(); });
  EXPECT_EQ(third.get_future().wait_for(seconds(30)), std::future_status::ready);
  stop.store(true);
}

TEST(EventLoopTest, EndsWhileWorkPostsMoreWork) {
  std::atomic<int> runs{0};
  std::function<void()> again;
  {
    EventLoop loop("test");
    again = [&] {
      ++runs;
      loop.Post([&] { again(); });
    };
    std::promise<void> ran;
    loop.Post([&] { again(); });
    loop.Post([&] { ran.set_value(); });
    ASSERT_EQ(ran.get_future().wait_for(seconds(30)), std::future_status::ready);
  }
  EXPECT_GE(runs.load(), 1);
}

TEST(EventLoopTest, DestroysWorkBeforeTheNextRuns) {
  EventLoop loop("test");
  auto owned = std::make_shared<int>(1);
  std::weak_ptr<int> watch = owned;
  std::promise<bool> gone;
  loop.Post([owned = std::move(owned)] {});
  loop.Post([&] { gone.set_value(watch.expired()); });
  EXPECT_TRUE(gone.get_future().get());
}

}  // namespace
}  // namespace ckptd
