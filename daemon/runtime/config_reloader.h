// Reads the configuration again while the daemon runs, and applies what can change then.
#ifndef CKPTD_DAEMON_RUNTIME_CONFIG_RELOADER_H_
#define CKPTD_DAEMON_RUNTIME_CONFIG_RELOADER_H_

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/config/v1/config.pb.h"
#include "daemon/config/config.h"

namespace ckptd {

class ConfigReloader {
 public:
  // What applies a setting in the daemon's parts. Each gets a complete configuration, which differs from the one in
  // force in that setting alone.
  struct Hooks {
    std::function<void(const config::v1::DaemonConfig&)> set_limits;
    // An error: why it cannot change; nothing has changed then.
    std::function<absl::Status(const config::v1::DaemonConfig&)> set_pool;
    // An error: why it cannot change now; nothing has changed then. Called only if the daemon is in a
    // cluster before and after the reload.
    std::function<absl::Status(const config::v1::DaemonConfig&)> set_shared_folders;
    // Likewise. Called at each reload, because the content of a file may have changed. Returns whether a file has
    // another content or another name.
    std::function<absl::StatusOr<bool>(const config::v1::DaemonConfig&)> renew_etcd_credentials;
  };

  // `running` is what the daemon was started with. `load` may be null: then Reload does nothing.
  ConfigReloader(const config::v1::DaemonConfig& running, std::function<LoadedConfig()> load, Hooks hooks)
      : running_(running), load_(std::move(load)), hooks_(std::move(hooks)) {}

  // Applies log.level, the pool's budget (bytes, populate_ahead_bytes, resident_bytes), limits,
  // cluster.shared_folders, and the certificates, the key, the user and the password for etcd, and logs what
  // each field was and is. Logs the names of the other fields that have changed: they need a restart. A
  // configuration with problems changes nothing, and the log says what is wrong with it. Returns whether it
  // was applied.
  bool Reload();

  // What is in force.
  const config::v1::DaemonConfig& running() const { return running_; }

 private:
  void TakePool(const config::v1::DaemonConfig& loaded);
  void TakeLimits(const config::v1::DaemonConfig& loaded);
  void TakeSharedFolders(const config::v1::DaemonConfig& loaded);
  void TakeEtcdCredentials(const config::v1::DaemonConfig& loaded);

  config::v1::DaemonConfig running_;
  const std::function<LoadedConfig()> load_;
  const Hooks hooks_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_RUNTIME_CONFIG_RELOADER_H_
