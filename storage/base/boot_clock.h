// Time that goes on while the machine is suspended: for leases, which other machines count meanwhile.
#ifndef CKPTD_STORAGE_BASE_BOOT_CLOCK_H_
#define CKPTD_STORAGE_BASE_BOOT_CLOCK_H_

#include "storage/base/clock.h"

namespace ckptd {

// As SystemClock(), but Now() is CLOCK_BOOTTIME. Its instants must not be compared with those of
// SystemClock(). Lives until the process ends.
Clock& BootClock();

}  // namespace ckptd
#endif  // CKPTD_STORAGE_BASE_BOOT_CLOCK_H_
