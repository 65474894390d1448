#include "storage/base/idle_priority.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <thread>

namespace ckptd {
namespace {

long IoClass() { return syscall(SYS_ioprio_get, 1, 0) >> 13; }

TEST(SetIdlePriority, AppliesToThisThreadAndThoseThatItStarts) {
  int own = -1, child = -1;
  long own_io = -1, child_io = -1;
  std::thread([&] {
    SetIdlePriority();
    own = sched_getscheduler(0);
    own_io = IoClass();
    std::thread([&] {
      child = sched_getscheduler(0);
      child_io = IoClass();
    }).join();
  }).join();
  EXPECT_EQ(own, SCHED_IDLE);
  EXPECT_EQ(child, SCHED_IDLE);
  EXPECT_EQ(own_io, 3);
  EXPECT_EQ(child_io, 3);
  EXPECT_EQ(sched_getscheduler(0), SCHED_OTHER);
  EXPECT_NE(IoClass(), 3);
}

}  // namespace
}  // namespace ckptd
