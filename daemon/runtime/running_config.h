// The configuration in force, in a file beside the socket, for `ckptctl debug dump`. A file, because it can
// also be read while the daemon hangs, and after it was killed.
#ifndef CKPTD_DAEMON_RUNTIME_RUNNING_CONFIG_H_
#define CKPTD_DAEMON_RUNTIME_RUNNING_CONFIG_H_

#include <string>

#include "absl/status/status.h"
#include "ckptd/config/v1/config.pb.h"

namespace ckptd {

// Where the daemon of this socket writes it.
std::string RunningConfigPath(const std::string& socket_path);

// Writes all fields with their defaults, for root and the daemon's user to read. It has no secrets, only the
// names of the files that hold some. `metrics_port`: the port in use, where that is any free one; 0: none.
absl::Status WriteRunningConfig(const config::v1::DaemonConfig& config, int metrics_port);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_RUNTIME_RUNNING_CONFIG_H_
