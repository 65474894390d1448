// A listening Unix socket at a path, made with care: nobody can connect before its mode and group are right,
// a socket that an earlier daemon left behind is replaced, and a living daemon's is not.
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
  std::optional<gid_t> group;  // The process's own when unset.
  // How long a living process's socket is waited for: one that was killed listens until the kernel has taken
  // all of it down.
  Duration patience = Duration::zero();
};

// Non-blocking and close-on-exec. FAILED_PRECONDITION, reason SOCKET_IN_USE, when a living process listens
// there; FAILED_PRECONDITION, reason NOT_A_SOCKET, when something else is there; else ErrnoError.
absl::StatusOr<UniqueFd> ListenUnix(const UnixListenerOptions& options);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_BASE_UNIX_LISTENER_H_
