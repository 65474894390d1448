// The daemon: makes every part, wires them, serves, and takes them down again in order.
#ifndef CKPTD_DAEMON_RUNTIME_DAEMON_H_
#define CKPTD_DAEMON_RUNTIME_DAEMON_H_

#include "ckptd/config/v1/config.pb.h"
#include "storage/base/clock.h"

namespace ckptd {

struct DaemonOptions {
  config::v1::DaemonConfig config;  // Complete and checked (LoadConfig).
  // A private daemon ends by itself: at once when its last keeper said Goodbye and all that is sealed is
  // published, or when for `idle_timeout` it had no session and nothing sealed to publish.
  bool is_private = false;
  Duration idle_timeout = std::chrono::seconds(300);
  int ready_fd = -1;  // Gets "READY\n" and is closed when the daemon serves; -1: none.
};

// SIGTERM and SIGINT, which end the daemon: blocked in the calling thread and those that it starts. Call it
// before any.
void BlockSignals();

// Serves until a signal, or until a private daemon is not needed any more. The process's exit code: 0 when
// everything sealed is published, 1 otherwise or when it could not start.
int RunDaemon(const DaemonOptions& options);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_RUNTIME_DAEMON_H_
