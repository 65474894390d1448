// The daemon: makes every part, connects them, serves, and takes them down in order.
#ifndef CKPTD_DAEMON_RUNTIME_DAEMON_H_
#define CKPTD_DAEMON_RUNTIME_DAEMON_H_

#include <functional>
#include <string>

#include "ckptd/config/v1/config.pb.h"
#include "daemon/config/config.h"
#include "storage/base/clock.h"

namespace ckptd {

struct DaemonOptions {
  config::v1::DaemonConfig config;  // Complete and checked (LoadConfig).
  // A private daemon ends by itself: when its last keeper has said Goodbye, no other session is open and all
  // sealed saves are published, or when it had neither a session nor a sealed save for `idle_timeout`.
  bool is_private = false;
  Duration idle_timeout = std::chrono::seconds(300);
  // Reads the configuration again, at SIGHUP. Null: SIGHUP, such as of a terminal that is closed, ends the
  // daemon.
  std::function<LoadedConfig()> reload;
  int ready_fd = -1;  // The daemon writes `ready_text` to it and closes it once it serves; -1: none.
  std::string ready_text = "READY\n";
};

// Blocks SIGTERM and SIGINT, which end the daemon, and SIGHUP, at which it reads its configuration again, in
// the calling thread and in those that it starts. Call it before starting a thread.
void BlockSignals();

// Serves until a signal, or until a private daemon is no longer needed. Returns the exit code of the process:
// 0 if everything sealed is published, 1 if not or if the daemon cannot start.
int RunDaemon(const DaemonOptions& options);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_RUNTIME_DAEMON_H_
