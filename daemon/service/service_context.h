// What the services' calls need of the daemon. No gRPC here.
#ifndef CKPTD_DAEMON_SERVICE_SERVICE_CONTEXT_H_
#define CKPTD_DAEMON_SERVICE_SERVICE_CONTEXT_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/event_loop.h"
#include "daemon/service/attach_queue.h"
#include "daemon/service/call_limits.h"
#include "daemon/service/callers.h"
#include "daemon/service/session_registry.h"
#include "daemon/service/worker_pool.h"
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
  const Callers* callers = nullptr;
  WorkerPool* workers = nullptr;
  AttachQueue* attaches = nullptr;
  CallLimits* call_limits = nullptr;  // Null: calls are not limited.
  MakeAttachment make_attachment;
  std::vector<std::string> container_roots;  // SecurityConfig::container_roots.
  std::string daemon_version;
  std::string daemon_instance;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_SERVICE_SERVICE_CONTEXT_H_
