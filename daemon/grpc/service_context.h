// What the services' calls need of the daemon. No gRPC here.
#ifndef CKPTD_DAEMON_GRPC_SERVICE_CONTEXT_H_
#define CKPTD_DAEMON_GRPC_SERVICE_CONTEXT_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/attach/attach_queue.h"
#include "daemon/base/event_loop.h"
#include "daemon/base/worker_pool.h"
#include "daemon/engine/engine.h"
#include "daemon/grpc/call_limits.h"
#include "daemon/sessions/call_authenticator.h"
#include "daemon/sessions/session_registry.h"
#include "storage/base/unique_fd.h"
#include "storage/fs/posix_file_system.h"

namespace ckptd {

// What the engine needs of an open root directory that `user` calls `path`. Blocks on its file system: for
// the AttachQueue. Thread-safe.
using MakeAttachment = std::function<absl::StatusOr<RootAttachment>(
    UniqueFd directory, const std::string& path, const FileUser& user)>;

// All of it outlives the gRPC server.
struct ServiceContext {
  Engine* engine = nullptr;  // Only on the loop's thread.
  EventLoop* loop = nullptr;
  SessionRegistry* sessions = nullptr;
  const CallAuthenticator* authenticator = nullptr;
  WorkerPool* workers = nullptr;
  AttachQueue* attaches = nullptr;
  CallLimits* call_limits = nullptr;  // Null: calls are not limited.
  MakeAttachment make_attachment;
  std::vector<std::string> container_roots;  // SecurityConfig::container_roots.
  std::string daemon_version;
  std::string daemon_instance;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_GRPC_SERVICE_CONTEXT_H_
