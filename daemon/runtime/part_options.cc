#include "daemon/runtime/part_options.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "ckptd/version.h"
#include "daemon/config/cluster_config.h"
#include "daemon/config/config.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

// Attaches of one user that may wait. All ranks of a node may attach at the same moment.
constexpr int kWaitingAttaches = 1024;

PagePolicy PagesOf(config::v1::HugePages pages) {
  switch (pages) {
    case config::v1::TRANSPARENT:
      return PagePolicy::kTransparent;
    case config::v1::PLAIN:
      return PagePolicy::kPlain;
    default:
      return PagePolicy::kAuto;
  }
}

IoBackend BackendOf(config::v1::Backend backend) {
  switch (backend) {
    case config::v1::BACKEND_IO_URING:
      return IoBackend::kUring;
    case config::v1::BACKEND_THREADS:
      return IoBackend::kThreads;
    default:
      return IoBackend::kAuto;
  }
}

absl::StatusOr<UnixListenerOptions> Socket(const std::string& path, const std::string& mode,
                                           const std::string& group, Duration timeout) {
  UnixListenerOptions socket{
      .path = path, .type = SOCK_STREAM, .mode = SocketMode(mode), .group = {}, .timeout = timeout};
  if (!group.empty()) {
    CKPTD_ASSIGN_OR_RETURN(socket.group, FindGroup(group));
  }
  return socket;
}

// A member that hangs must leave time to ask another one before the lease is over.
constexpr int kTriesInALease = 4;

absl::StatusOr<EtcdOptions> EtcdOptionsOf(const config::v1::ClusterConfig& cluster) {
  EtcdOptions options;
  options.endpoints = EtcdHosts(cluster);
  if (UsesTls(cluster)) {
    options.tls = EtcdTls{cluster.etcd_ca_file(), cluster.etcd_certificate_file(), cluster.etcd_key_file()};
  }
  options.user = cluster.etcd_user();
  if (!cluster.etcd_password_file().empty()) {
    CKPTD_ASSIGN_OR_RETURN(options.password, ReadEtcdPassword(cluster.etcd_password_file()));
  }
  options.call_timeout = std::chrono::seconds(cluster.etcd_timeout_seconds());
  const Duration share = std::chrono::milliseconds(cluster.lease_seconds() * 1000 / kTriesInALease);
  options.try_timeout = std::min({options.try_timeout, options.call_timeout, share});
  return options;
}

std::string HostName() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "(unknown)";
}

Duration VisibilityOf(const config::v1::DaemonConfig& config) {
  return std::chrono::seconds(config.cluster().visibility_seconds());
}

}  // namespace

ThreadedRootIoOptions RootIoOptionsOf(const config::v1::DaemonConfig& config) {
  const auto& io = config.io();
  ThreadedRootIoOptions options;
  options.backend = BackendOf(io.backend());
  options.writer.chunk_bytes = io.chunk_bytes();
  options.writer.depth = io.depth();
  options.checksum_threads = io.checksum_threads();
  if (config.has_cluster()) options.staleness = VisibilityOf(config);
  return options;
}

AttachLimits AttachLimitsOf(const config::v1::DaemonConfig& config) {
  AttachLimits limits;
  limits.waiting_per_uid = kWaitingAttaches;
  limits.timeout = std::chrono::seconds(config.limits().attach_timeout_seconds());
  return limits;
}

SegmentPoolBudget PoolBudgetOf(const config::v1::DaemonConfig& config) {
  const auto& pool = config.pool();
  return {.bytes = pool.bytes(),
          .populate_ahead_bytes = pool.populate_ahead_bytes(),
          .resident_bytes = pool.resident_bytes()};
}

SegmentPoolOptions PoolOptionsOf(const config::v1::DaemonConfig& config) {
  const SegmentPoolBudget budget = PoolBudgetOf(config);
  return {.bytes = budget.bytes,
          .segment_bytes = config.pool().segment_bytes(),
          .populate_ahead_bytes = budget.populate_ahead_bytes,
          .resident_bytes = budget.resident_bytes,
          .pages = PagesOf(config.pool().huge_pages())};
}

EngineOptions EngineOptionsOf(const config::v1::DaemonConfig& config, const std::string& instance) {
  const auto& io = config.io();
  const auto& limits = config.limits();
  EngineOptions options;
  options.daemon_version = std::string(kVersion);
  options.daemon_instance = instance;
  options.degraded_after = std::chrono::seconds(config.degraded_after_seconds());
  options.chunk_bytes = io.chunk_bytes();
  options.scrub_period = std::chrono::hours(config.scrub().period_hours());
  options.scrub_bytes_per_second = config.scrub().bytes_per_second();
  options.max_admission_timeout = std::chrono::seconds(limits.max_admission_timeout_seconds());
  options.max_commit_timeout = std::chrono::seconds(limits.max_commit_timeout_seconds());
  options.max_pool_percent_per_user = limits.max_pool_percent_per_user();
  options.max_reader_pool_percent_per_user = limits.max_reader_pool_percent_per_user();
  options.over_share_grace = std::chrono::seconds(limits.over_share_grace_seconds());
  options.idle_pool = std::chrono::seconds(config.pool().idle_seconds());
  options.idle_root = std::chrono::seconds(limits.idle_root_seconds());
  options.trash_grace = std::chrono::seconds(limits.trash_grace_seconds());
  options.roots_per_uid = limits.roots_per_uid();
  options.file_systems_per_uid = limits.file_systems_per_uid();
  options.attach_timeout = std::chrono::seconds(limits.attach_timeout_seconds());
  options.limits.ranks_per_run = limits.ranks_per_run();
  options.limits.files_per_part = limits.files_per_part();
  options.limits.files_per_uid = limits.files_per_uid();
  options.limits.saves_per_uid = limits.saves_per_uid();
  options.limits.leases_per_uid = limits.leases_per_uid();
  options.limits.manifest_bytes_per_uid = limits.manifest_bytes_per_uid();
  options.limits.watches_per_uid = limits.watches_per_uid();
  options.node = config.cluster().node_name();
  return options;
}

KnownRootLimits KnownRootLimitsOf(const config::v1::DaemonConfig& config) {
  return {.roots_per_uid = config.limits().known_roots_per_uid()};
}

GrpcLimits GrpcLimitsOf(const config::v1::DaemonConfig& config) {
  GrpcLimits limits;
  limits.max_connections = 4 * config.max_sessions();
  limits.max_connections_per_uid = config.limits().connections_per_uid();
  limits.streams_per_connection = config.limits().streams_per_connection();
  limits.memory_bytes = config.limits().grpc_memory_bytes();
  return limits;
}

absl::StatusOr<ClusterNode::Options> ClusterOptionsOf(const config::v1::DaemonConfig& config) {
  const auto& cluster = config.cluster();
  ClusterNode::Options options;
  CKPTD_ASSIGN_OR_RETURN(options.etcd, EtcdOptionsOf(cluster));
  options.membership.prefix = cluster.etcd_prefix();
  options.membership.name = cluster.node_name();
  options.membership.host = HostName();
  options.membership.version = kVersion;
  options.membership.lease_seconds = cluster.lease_seconds();
  return options;
}

SharedRoots::Options SharedRootsOptionsOf(const config::v1::DaemonConfig& config) {
  SharedRoots::Options options;
  options.folders = config.cluster().shared_folders();
  options.cluster_prefix = config.cluster().etcd_prefix();
  options.grace = std::chrono::seconds(config.cluster().node_grace_seconds());
  options.visibility = VisibilityOf(config);
  options.bound = {config.limits().etcd_keys_per_uid(), config.limits().etcd_bytes_per_uid()};
  return options;
}

absl::StatusOr<UnixListenerOptions> SocketOptionsOf(const config::v1::DaemonConfig& config,
                                                    Duration timeout) {
  return Socket(config.socket_path(), config.socket_mode(), config.socket_group(), timeout);
}

HandoffOptions HandoffOptionsOf(const config::v1::DaemonConfig& config, const UnixListenerOptions& socket,
                                const std::string& instance) {
  HandoffOptions options;
  options.socket_path = config.socket_path() + ".handoff";
  options.mode = socket.mode;
  options.group = socket.group;
  options.listen_timeout = socket.timeout;
  options.max_connections = 2 * config.max_sessions();
  options.max_connections_per_uid = config.limits().connections_per_uid();
  options.daemon_instance = instance;
  options.daemon_version = kVersion;
  return options;
}

BucketUploads::Options UploadOptionsOf(const config::v1::DaemonConfig& config, bool is_private,
                                       std::function<void(absl::AnyInvocable<void()>)> post) {
  const auto& upload = config.upload();
  BucketUploads::Options options;
  options.rights.allows_all = is_private;
  options.rights.prefixes = {upload.allowed_prefixes().begin(), upload.allowed_prefixes().end()};
  options.bytes_per_second = upload.bytes_per_second();
  options.parallel_parts = upload.parallel_parts();
  options.post = std::move(post);
  return options;
}

absl::StatusOr<std::vector<HttpServer::Options>> MetricsOptionsOf(const config::v1::DaemonConfig& config,
                                                                  Duration timeout) {
  const auto& metrics = config.metrics();
  std::vector<HttpServer::Options> servers;
  if (metrics.port() < 0 && metrics.socket_path().empty()) return servers;
  std::string token;
  if (!metrics.token_file().empty()) {
    CKPTD_ASSIGN_OR_RETURN(token, ReadToken(metrics.token_file()));
  }
  if (metrics.port() >= 0) {
    servers.emplace_back().port = metrics.port();
    servers.back().token = token;
  }
  if (!metrics.socket_path().empty()) {
    CKPTD_ASSIGN_OR_RETURN(
        const UnixListenerOptions socket,
        Socket(metrics.socket_path(), metrics.socket_mode(), metrics.socket_group(), timeout));
    CKPTD_ASSIGN_OR_RETURN(servers.emplace_back().listener, ListenUnix(socket));
    servers.back().token = token;
  }
  return servers;
}

}  // namespace ckptd
