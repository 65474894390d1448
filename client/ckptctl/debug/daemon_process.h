// What /proc tells of the process that serves a socket.
#ifndef CKPTD_CLIENT_CKPTCTL_DEBUG_DAEMON_PROCESS_H_
#define CKPTD_CLIENT_CKPTCTL_DEBUG_DAEMON_PROCESS_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace ckptd::ctl {

struct DaemonProcess {
  pid_t pid = 0;
  uid_t uid = 0;
};

// The process that listens on the socket. It need not answer: one that hangs is found, too. NOT_FOUND if
// nobody listens, FAILED_PRECONDITION if this process cannot see it (another PID namespace).
absl::StatusOr<DaemonProcess> FindDaemonProcess(const std::string& socket_path);

// A file of at most 4 MiB, or the beginning of a longer one, such as those of /proc. INVALID_ARGUMENT if it
// is none: it never waits for a FIFO or a device.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path);
// "NAME=value" of each variable with which the process was started.
absl::StatusOr<std::vector<std::string>> EnvironmentOf(pid_t pid);
absl::StatusOr<std::vector<std::string>> CommandOf(pid_t pid);
// The value of the option, which is written "--name=value" or "--name value". Empty: it is not there.
std::string OptionOf(const std::vector<std::string>& command, const std::string& name);
// Where a link of /proc leads, such as "exe" and "fd/2".
absl::StatusOr<std::string> LinkOf(pid_t pid, const std::string& name);
// The unit of the service manager that the process belongs to, "ckptd.service"; empty: none.
std::string UnitOf(pid_t pid);

// Program, command line, and what the kernel says of the process and its limits.
absl::StatusOr<std::string> DescribeProcess(const DaemonProcess& process);
// Each thread, with its state and the kernel's function that it waits in. Shows what hangs.
absl::StatusOr<std::string> DescribeThreads(pid_t pid);

}  // namespace ckptd::ctl
#endif  // CKPTD_CLIENT_CKPTCTL_DEBUG_DAEMON_PROCESS_H_
