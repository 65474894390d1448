// Reads the configuration again while the daemon runs, and applies what can change then.
#ifndef CKPTD_DAEMON_RUNTIME_CONFIG_RELOADER_H_
#define CKPTD_DAEMON_RUNTIME_CONFIG_RELOADER_H_

#include <functional>

#include "ckptd/config/v1/config.pb.h"
#include "daemon/config/config.h"

namespace ckptd {

class ConfigReloader {
 public:
  // `running` is what the daemon was started with. `load` may be null: then Reload does nothing.
  ConfigReloader(const config::v1::DaemonConfig& running, std::function<LoadedConfig()> load)
      : running_(running), load_(std::move(load)) {}

  // Applies log.level. Logs the names of the other fields that have changed: they need a restart. A
  // configuration with problems changes nothing, and the log says what is wrong with it.
  void Reload();

 private:
  config::v1::DaemonConfig running_;
  const std::function<LoadedConfig()> load_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_RUNTIME_CONFIG_RELOADER_H_
