// The parts of the daemon that the services use. Free of gRPC's headers.
#ifndef CKPTD_DAEMON_GRPC_BASE_SERVICE_CONTEXT_H_
#define CKPTD_DAEMON_GRPC_BASE_SERVICE_CONTEXT_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ckptd/v1/messages.pb.h"
#include "daemon/attach/attach_queue.h"
#include "daemon/base/event_loop.h"
#include "daemon/base/worker_pool.h"
#include "daemon/engine/engine.h"
#include "daemon/grpc/base/call_limits.h"
#include "daemon/history/history_store.h"
#include "daemon/sessions/call_authenticator.h"
#include "daemon/sessions/session_registry.h"
#include "storage/base/unique_fd.h"
#include "storage/fs/posix_file_system.h"

namespace ckptd {

// Makes what the engine needs to attach an open root directory that `user` names `path`. Blocks on its file
// system, so call it on the AttachQueue. Thread-safe.
using MakeAttachment = std::function<absl::StatusOr<RootAttachment>(
    UniqueFd directory, const std::string& path, const FileUser& user)>;

// Everything here must outlive the gRPC server.
struct ServiceContext {
  Engine* engine = nullptr;  // Used on the loop's thread only.
  EventLoop* loop = nullptr;
  SessionRegistry* sessions = nullptr;
  const CallAuthenticator* authenticator = nullptr;
  WorkerPool* workers = nullptr;
  AttachQueue* attaches = nullptr;
  HistoryStore* history = nullptr;
  CallLimits* call_limits = nullptr;  // Null: calls are not limited.
  MakeAttachment make_attachment;
  // Called on the loop's thread. Null: the daemon is in no cluster.
  std::function<v1::ClusterStatus()> cluster_status = nullptr;
  // Adds to a status what the other nodes have last reported of themselves. On the same thread, and null with
  // cluster_status.
  std::function<void(v1::Status, Reply<v1::Status>)> add_summaries = nullptr;
  std::vector<std::string> container_roots;  // SecurityConfig::container_roots.
  std::string daemon_version;
  std::string daemon_instance;
};

// Names and addresses of other machines are for operators: other callers see nothing of the cluster.
inline void AddClusterStatus(const ServiceContext& context, const Caller& caller, v1::Status* status) {
  if (!caller.privileged || context.cluster_status == nullptr) return;
  *status->mutable_cluster() = context.cluster_status();
}

}  // namespace ckptd
#endif  // CKPTD_DAEMON_GRPC_BASE_SERVICE_CONTEXT_H_
