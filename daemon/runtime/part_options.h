// Maps the configuration to the options of each part of the daemon. Nothing else reads a config field for a
// part.
#ifndef CKPTD_DAEMON_RUNTIME_PART_OPTIONS_H_
#define CKPTD_DAEMON_RUNTIME_PART_OPTIONS_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "ckptd/config/v1/config.pb.h"
#include "daemon/attach/attach_queue.h"
#include "daemon/attach/state_directory.h"
#include "daemon/base/unix_listener.h"
#include "daemon/engine/engine.h"
#include "daemon/grpc/grpc_server.h"
#include "daemon/handoff/handoff_server.h"
#include "daemon/memory/segment_pool.h"
#include "daemon/metrics/http_server.h"
#include "daemon/root_io/threaded_root_io.h"
#include "daemon/runtime/cluster/cluster_node.h"
#include "daemon/runtime/cluster/shared_roots.h"
#include "daemon/upload/bucket_uploads.h"
#include "storage/base/clock.h"

namespace ckptd {

// `config` must be complete and checked (LoadConfig). `instance`: the daemon's random id.
ThreadedRootIoOptions RootIoOptionsOf(const config::v1::DaemonConfig& config);
AttachLimits AttachLimitsOf(const config::v1::DaemonConfig& config);
SegmentPoolBudget PoolBudgetOf(const config::v1::DaemonConfig& config);
SegmentPoolOptions PoolOptionsOf(const config::v1::DaemonConfig& config);
EngineOptions EngineOptionsOf(const config::v1::DaemonConfig& config, const std::string& instance);
KnownRootLimits KnownRootLimitsOf(const config::v1::DaemonConfig& config);
GrpcLimits GrpcLimitsOf(const config::v1::DaemonConfig& config);

// Reads the password's file. Without the incarnations of the state directory. The block `cluster` is there.
absl::StatusOr<ClusterNode::Options> ClusterOptionsOf(const config::v1::DaemonConfig& config);

// The block `cluster` is there.
SharedRoots::Options SharedRootsOptionsOf(const config::v1::DaemonConfig& config);

// `timeout`: how long to wait for a daemon that was killed and still holds the socket. NOT_FOUND or similar
// if the configured group does not exist.
absl::StatusOr<UnixListenerOptions> SocketOptionsOf(const config::v1::DaemonConfig& config, Duration timeout);
// The hand-off socket has the mode and the group of `socket`.
HandoffOptions HandoffOptionsOf(const config::v1::DaemonConfig& config, const UnixListenerOptions& socket,
                                const std::string& instance);
// A private daemon has the rights of the job that has started it. `post` runs work on the engine's thread.
BucketUploads::Options UploadOptionsOf(const config::v1::DaemonConfig& config, bool is_private,
                                       std::function<void(absl::AnyInvocable<void()>)> post);
// Of the servers of /metrics: one for the port, and one for metrics.socket_path, on which this listens. Each
// has its own bound of connections, so those to the port, which every user may open, cannot use up the
// socket's. Reads metrics.token_file. Empty: metrics are off.
absl::StatusOr<std::vector<HttpServer::Options>> MetricsOptionsOf(const config::v1::DaemonConfig& config,
                                                                  Duration timeout);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_RUNTIME_PART_OPTIONS_H_
