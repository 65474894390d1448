// An IoQueue of a CrashDisk. Submitted writes are in flight until Poll ends them, in an order given by the
// seed; the disk's rules say what a power cut or a kill leaves of them.
#ifndef CKPTD_TESTS_TESTING_CRASH_IO_QUEUE_H_
#define CKPTD_TESTS_TESTING_CRASH_IO_QUEUE_H_

#include <cstdint>

#include "storage/io/io_queue.h"
#include "tests/testing/crash_disk.h"

namespace ckptd {

// `disk` must outlive the queues.
IoQueueFactory CrashQueueFactory(CrashDisk* disk, uint64_t seed = 1);

}  // namespace ckptd
#endif  // CKPTD_TESTS_TESTING_CRASH_IO_QUEUE_H_
