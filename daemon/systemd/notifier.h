// Seam: the service manager. Real: one datagram to $NOTIFY_SOCKET, as sd_notify(3) describes it (libsystemd
// has no static library). Fake: any subclass.
#ifndef CKPTD_DAEMON_SYSTEMD_NOTIFIER_H_
#define CKPTD_DAEMON_SYSTEMD_NOTIFIER_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/base/clock.h"

namespace ckptd {

class Notifier {
 public:
  virtual ~Notifier() = default;
  // `state` is "READY=1", "STOPPING=1", "WATCHDOG=1", "STATUS=..." or several of them, a line each.
  virtual absl::Status Send(const std::string& state) = 0;
  // What must not be lost: waits up to a second for room in the manager's queue. `fd` goes along; -1: none.
  // UNAVAILABLE when there is no manager. Thread-safe.
  virtual absl::Status SendWith(const std::string& state, int fd) = 0;
};

// To the socket that $NOTIFY_SOCKET names: a path, or "@name" for an abstract one. Without it Send does
// nothing. The variable is taken out of the environment, so that no child process speaks for us.
// INVALID_ARGUMENT, reason INVALID_ARGUMENT, for an address that cannot be one.
absl::StatusOr<std::unique_ptr<Notifier>> MakeNotifier();

// How often the watchdog wants to be fed at least ($WATCHDOG_USEC, when $WATCHDOG_PID is this process or
// unset); nullopt: there is none. Twice as often is advised.
std::optional<Duration> WatchdogInterval();

}  // namespace ckptd
#endif  // CKPTD_DAEMON_SYSTEMD_NOTIFIER_H_
