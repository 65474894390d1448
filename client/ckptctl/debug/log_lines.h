// The last lines that a daemon has logged.
#ifndef CKPTD_CLIENT_CKPTCTL_DEBUG_LOG_LINES_H_
#define CKPTD_CLIENT_CKPTCTL_DEBUG_LOG_LINES_H_

#include <string>

#include "absl/status/statusor.h"
#include "client/ckptctl/debug/daemon_process.h"

namespace ckptd::ctl {

struct LogLines {
  std::string source;  // "journalctl --unit=ckptd.service", or the path of a file.
  std::string text;
};

// Of a file that the daemon's standard error is, else of the journal, under the unit of the process. Without a
// daemon: of the file of a private daemon beside the socket, else of the journal of ckptd.service.
absl::StatusOr<LogLines> ReadLogLines(const absl::StatusOr<DaemonProcess>& daemon,
                                      const std::string& socket_path);

// What a program writes to its standard output, at most 4 MiB. DEADLINE_EXCEEDED after 10 s, when it is
// killed. Its errors are those of its standard error. A function for the test.
absl::StatusOr<std::string> OutputOf(const std::vector<std::string>& command, int timeout_ms = 10'000);

}  // namespace ckptd::ctl
#endif  // CKPTD_CLIENT_CKPTCTL_DEBUG_LOG_LINES_H_
