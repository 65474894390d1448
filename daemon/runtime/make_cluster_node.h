// Connects a ClusterNode with the daemon's parts.
#ifndef CKPTD_DAEMON_RUNTIME_MAKE_CLUSTER_NODE_H_
#define CKPTD_DAEMON_RUNTIME_MAKE_CLUSTER_NODE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "ckptd/config/v1/config.pb.h"
#include "daemon/attach/state_directory.h"
#include "daemon/base/worker_pool.h"
#include "daemon/etcd/grpc/grpc_etcd.h"
#include "daemon/metrics/metrics.h"
#include "daemon/runtime/cluster/cluster_node.h"

namespace ckptd {

// The pointers must outlive the ClusterNode and what it has posted.
struct ClusterParts {
  StateDirectory* state = nullptr;
  WorkerPool* state_worker = nullptr;  // Writes to the state directory.
  DaemonMetrics* metrics = nullptr;
  GrpcEtcd::Post post;   // To the engine's thread.
  std::string instance;  // The daemon's random id, of 128 bits.
};

// Null if the configuration has no block `cluster`. Errors of reading its files. What the state directory
// knows of earlier registrations is read now; an error of that is logged, and costs the wait for the end of
// their lease.
absl::StatusOr<std::unique_ptr<ClusterNode>> MakeClusterNode(const config::v1::DaemonConfig& config,
                                                             ClusterParts parts);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_RUNTIME_MAKE_CLUSTER_NODE_H_
