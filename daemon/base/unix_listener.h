// Makes a listening Unix socket at a path. Nobody can connect before its mode and group are set. A socket
// that an earlier daemon left behind is replaced; that of a living process is not.
#ifndef CKPTD_DAEMON_BASE_UNIX_LISTENER_H_
#define CKPTD_DAEMON_BASE_UNIX_LISTENER_H_

#include <sys/types.h>

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "storage/base/clock.h"
#include "storage/base/unique_fd.h"

namespace ckptd {

struct UnixListenerOptions {
  std::string path;  // Absolute, at most 107 bytes; its directory must exist.
  int type = 0;      // SOCK_STREAM or SOCK_SEQPACKET.
  mode_t mode = 0660;
  std::optional<gid_t> group;  // nullopt: the group of the process.
  // How long to wait while a living process has the socket: a process that was killed keeps it until the
  // kernel has torn it down.
  Duration timeout = Duration::zero();
};

// Returns a non-blocking, close-on-exec listener. FAILED_PRECONDITION, reason SOCKET_IN_USE, when a living
// process listens at the path; FAILED_PRECONDITION, reason NOT_A_SOCKET, when something else is there; else
// ErrnoError.
absl::StatusOr<UniqueFd> ListenUnix(const UnixListenerOptions& options);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_BASE_UNIX_LISTENER_H_
