#include "daemon/runtime/config_reloader.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_join.h"
#include "daemon/log/log.h"

namespace ckptd {
namespace {

using config::v1::DaemonConfig;

constexpr std::array kLevels = {"debug", "info", "warning", "error"};

bool IsQuieter(const std::string& level, const std::string& than) {
  return std::find(kLevels.begin(), kLevels.end(), level) > std::find(kLevels.begin(), kLevels.end(), than);
}

void LogChanges(const DaemonConfig& before, const DaemonConfig& after) {
  for (const std::string& field : ChangedFields(before, after)) {
    Log(LogLevel::kInfo, "SIGHUP: a setting has changed",
        {{"field", field}, {"was", FieldText(before, field)}, {"is", FieldText(after, field)}});
  }
}

// The limits that count from now on. Those stay that cannot change, and those whose defaults follow from a
// setting that has changed and needs a restart: they change with it.
config::v1::LimitsConfig NextLimits(const DaemonConfig& running, const DaemonConfig& loaded) {
  config::v1::LimitsConfig next = loaded.limits();
  next.set_streams_per_connection(running.limits().streams_per_connection());
  if (loaded.max_sessions() != running.max_sessions())
    next.set_sessions_per_uid(running.limits().sessions_per_uid());
  if (loaded.pool().bytes() != running.pool().bytes() ||
      loaded.pool().resident_bytes() != running.pool().resident_bytes()) {
    next.set_max_reader_pool_percent_per_user(running.limits().max_reader_pool_percent_per_user());
  }
  return next;
}

DaemonConfig EndpointsOf(const DaemonConfig& config) {
  DaemonConfig endpoints;
  *endpoints.mutable_cluster()->mutable_etcd_endpoints() = config.cluster().etcd_endpoints();
  return endpoints;
}

}  // namespace

// The size of a segment stays until a restart, also where it follows from the budget.
void ConfigReloader::TakePool(const DaemonConfig& loaded) {
  DaemonConfig next = running_;
  next.mutable_pool()->set_bytes(loaded.pool().bytes());
  next.mutable_pool()->set_populate_ahead_bytes(loaded.pool().populate_ahead_bytes());
  next.mutable_pool()->set_resident_bytes(loaded.pool().resident_bytes());
  if (ChangedFields(running_, next).empty()) return;
  if (const absl::Status changed = hooks_.set_pool(next); !changed.ok()) {
    return Log(LogLevel::kError, "SIGHUP: the pool stays as it was",
               {{"bytes", FieldText(running_, "pool.bytes")}, {"error", std::string(changed.message())}});
  }
  LogChanges(running_, next);
  running_ = next;
}

void ConfigReloader::TakeLimits(const DaemonConfig& loaded) {
  DaemonConfig next = running_;
  *next.mutable_limits() = NextLimits(running_, loaded);
  if (ChangedFields(running_, next).empty()) return;
  hooks_.set_limits(next);
  LogChanges(running_, next);
  running_ = next;
}

void ConfigReloader::TakeSharedFolders(const DaemonConfig& loaded) {
  if (!running_.has_cluster() || !loaded.has_cluster()) return;
  DaemonConfig next = running_;
  *next.mutable_cluster()->mutable_shared_folders() = loaded.cluster().shared_folders();
  if (ChangedFields(running_, next).empty()) return;
  if (const absl::Status changed = hooks_.set_shared_folders(next); !changed.ok()) {
    return Log(
        LogLevel::kError, "SIGHUP: cluster.shared_folders stays as it was",
        {{"is", FieldText(running_, "cluster.shared_folders")}, {"error", std::string(changed.message())}});
  }
  LogChanges(running_, next);
  running_ = next;
}

void ConfigReloader::TakeEtcdCredentials(const DaemonConfig& loaded) {
  if (!running_.has_cluster() || !loaded.has_cluster()) return;
  const config::v1::ClusterConfig& from = loaded.cluster();
  DaemonConfig next = running_;
  config::v1::ClusterConfig& cluster = *next.mutable_cluster();
  // TLS and what belongs to it change with the endpoints, which need a restart.
  if (!ChangedFields(EndpointsOf(running_), EndpointsOf(loaded)).empty()) return;
  cluster.set_etcd_ca_file(from.etcd_ca_file());
  cluster.set_etcd_certificate_file(from.etcd_certificate_file());
  cluster.set_etcd_key_file(from.etcd_key_file());
  cluster.set_etcd_user(from.etcd_user());
  cluster.set_etcd_password_file(from.etcd_password_file());
  const absl::StatusOr<bool> renewed = hooks_.renew_etcd_credentials(next);
  if (!renewed.ok()) {
    return Log(
        LogLevel::kError,
        "SIGHUP: the certificates, key and password for etcd stay as they were: etcd does not accept the "
        "new ones",
        {{"error", std::string(renewed.status().message())}});
  }
  LogChanges(running_, next);
  running_ = next;
  if (*renewed) Log(LogLevel::kInfo, "SIGHUP: new certificates, key or password for etcd are in use");
}

bool ConfigReloader::Reload() {
  if (!load_) return false;
  const LoadedConfig loaded = load_();
  for (const std::string& problem : loaded.problems) {
    Log(LogLevel::kError, "SIGHUP: the configuration is not valid, and nothing was changed",
        {{"error", problem}});
  }
  if (!loaded.problems.empty()) return false;
  DaemonConfig next = running_;
  const std::string& level = loaded.config.log().level();
  next.mutable_log()->set_level(level);
  // The lines below are written at the level that shows more.
  if (!IsQuieter(level, running_.log().level())) SetLogLevel(level);
  LogChanges(running_, next);
  running_ = next;
  TakePool(loaded.config);
  TakeLimits(loaded.config);
  TakeSharedFolders(loaded.config);
  TakeEtcdCredentials(loaded.config);
  Log(LogLevel::kInfo, "SIGHUP: read the configuration again", {{"log_level", level}});
  const std::vector<std::string> others = ChangedFields(running_, loaded.config);
  if (!others.empty()) {
    Log(LogLevel::kWarning, "SIGHUP: these fields have changed and take effect when the daemon is restarted",
        {{"fields", absl::StrJoin(others, ",")}});
  }
  SetLogLevel(level);
  return true;
}

}  // namespace ckptd
