// For work that nobody waits for on a machine where others compute.
#ifndef CKPTD_STORAGE_BASE_IDLE_PRIORITY_H_
#define CKPTD_STORAGE_BASE_IDLE_PRIORITY_H_

namespace ckptd {

// From now on this thread, and those that it starts, compute only where nothing else wants the core
// (SCHED_IDLE), and their reads go behind everybody's where the disk's scheduler has an idle class
// (mq-deadline, bfq). Needs no privilege, and without one there is no way back: for threads that end, and
// that hold no lock which others need, who would wait as it does. Does what the kernel allows, and reports
// nothing.
//
// Needs nothing of C++'s runtime library: the Python package's native library is made of it.
void SetIdlePriority();

}  // namespace ckptd
#endif  // CKPTD_STORAGE_BASE_IDLE_PRIORITY_H_
