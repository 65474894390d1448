// Limits and random numbers of the machine.
#ifndef CKPTD_DAEMON_RUNTIME_PROCESS_MACHINE_H_
#define CKPTD_DAEMON_RUNTIME_PROCESS_MACHINE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace ckptd {

// Raises the limit on open descriptors to the hard limit, because every segment and connection takes one.
// Returns the limit in force afterwards; 0 if it is unknown.
int64_t RaiseDescriptorLimit();

// Returns 128 random bits as 32 hexadecimal digits.
absl::StatusOr<std::string> RandomId();

// Returns the smallest memory limit in bytes of this process's control groups (version 2); nullopt if there
// is none. Tests give other paths than /proc/self/cgroup and /sys/fs/cgroup.
std::optional<int64_t> ControlGroupMemoryLimit(const std::string& proc = "/proc/self/cgroup",
                                               const std::string& cgroup = "/sys/fs/cgroup");

}  // namespace ckptd
#endif  // CKPTD_DAEMON_RUNTIME_PROCESS_MACHINE_H_
