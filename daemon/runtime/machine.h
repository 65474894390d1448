// What the daemon asks of the machine it runs on.
#ifndef CKPTD_DAEMON_RUNTIME_MACHINE_H_
#define CKPTD_DAEMON_RUNTIME_MACHINE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace ckptd {

// Open descriptors up to the hard limit: every segment and connection is one. The limit that is in force
// then.
int64_t RaiseDescriptorLimit();

// 128 random bits in hex.
absl::StatusOr<std::string> RandomId();

// The smallest memory limit that this process's control groups (version 2) set; nullopt when there is none.
// `proc` and `cgroup` are /proc/self/cgroup and /sys/fs/cgroup but in tests.
std::optional<int64_t> ControlGroupMemoryLimit(const std::string& proc = "/proc/self/cgroup",
                                               const std::string& cgroup = "/sys/fs/cgroup");

}  // namespace ckptd
#endif  // CKPTD_DAEMON_RUNTIME_MACHINE_H_
