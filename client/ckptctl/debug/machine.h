// What a debug dump tells of the machine.
#ifndef CKPTD_CLIENT_CKPTCTL_DEBUG_MACHINE_H_
#define CKPTD_CLIENT_CKPTCTL_DEBUG_MACHINE_H_

#include <sys/types.h>

#include <string>
#include <vector>

namespace ckptd::ctl {

// Kernel, system, memory, pressure, the settings that matter to ckptd, and what `ckptctl doctor` finds of the
// machine for this user.
std::string DescribeMachine();
// The memory limits and events of the control group of the process.
std::string DescribeControlGroup(pid_t pid);
// The mount of each path, as the process `pid` sees it; 0: as this one does. Asks no file system.
std::string DescribeMounts(pid_t pid, const std::vector<std::string>& paths);

}  // namespace ckptd::ctl
#endif  // CKPTD_CLIENT_CKPTCTL_DEBUG_MACHINE_H_
