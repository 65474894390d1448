// Seam: sends notifications to the service manager. Real: datagrams to $NOTIFY_SOCKET as in sd_notify(3),
// written here because libsystemd has no static library. Fakes: subclasses in tests.
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
  // Sends `state`: "READY=1", "STOPPING=1", "WATCHDOG=1", "STATUS=..." or several of them, one per line. Does
  // not wait; an error means that the message is lost.
  virtual absl::Status Send(const std::string& state) = 0;
  // Sends a message that must not be lost: waits up to a second for room in the manager's queue. `fd` goes
  // with it; -1: none. UNAVAILABLE when there is no manager. Thread-safe.
  virtual absl::Status SendWith(const std::string& state, int fd) = 0;
};

// Makes a notifier for the socket that $NOTIFY_SOCKET names: a path, or "@name" for an abstract one. Without
// the variable, Send is a no-op. Removes the variable from the environment, so that no child process notifies
// for us. INVALID_ARGUMENT, reason INVALID_ARGUMENT, if the value is no socket address.
absl::StatusOr<std::unique_ptr<Notifier>> MakeNotifier();

// Returns the watchdog's interval ($WATCHDOG_USEC, if $WATCHDOG_PID is this process or unset); nullopt: there
// is no watchdog. Notify it at least twice as often.
std::optional<Duration> WatchdogInterval();

}  // namespace ckptd
#endif  // CKPTD_DAEMON_SYSTEMD_NOTIFIER_H_
