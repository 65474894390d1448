#include "storage/base/idle_priority.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace ckptd {
namespace {

// Constants of linux/ioprio.h, which older distributions do not have.
constexpr int kThisThread = 1;       // IOPRIO_WHO_PROCESS.
constexpr int kIdleClass = 3 << 13;  // IOPRIO_CLASS_IDLE.

}  // namespace

void SetIdlePriority() {
  const sched_param none{};
  sched_setscheduler(0, SCHED_IDLE, &none);
  syscall(SYS_ioprio_set, kThisThread, 0, kIdleClass);
}

}  // namespace ckptd
