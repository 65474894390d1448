// Idle CPU and I/O priority for background work on a machine that trains.
#ifndef CKPTD_STORAGE_BASE_IDLE_PRIORITY_H_
#define CKPTD_STORAGE_BASE_IDLE_PRIORITY_H_

namespace ckptd {

// Lowers this thread, and the threads that it starts from now on, to idle CPU priority (SCHED_IDLE) and the
// disk's idle class (where the scheduler has one: mq-deadline, bfq). Without privileges there is no way back,
// so call it only on threads that end. Such a thread must hold no lock that others need: they would wait as
// long as it does. Best effort: does what the kernel allows, and reports nothing.
//
// Uses nothing of the C++ runtime library, because the Python package's native library contains it.
void SetIdlePriority();

}  // namespace ckptd
#endif  // CKPTD_STORAGE_BASE_IDLE_PRIORITY_H_
