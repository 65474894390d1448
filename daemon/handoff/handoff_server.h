// Server of the hand-off socket, where sessions begin and end and where descriptors pass. Frames:
// proto/ckptd/v1/handoff.proto. A session ends when its connection closes or the process that made it ends,
// whichever is first: a forked child may hold the connection open long after. Whatever a peer sends, the
// worst result is that its connection is closed.
#ifndef CKPTD_DAEMON_HANDOFF_HANDOFF_SERVER_H_
#define CKPTD_DAEMON_HANDOFF_HANDOFF_SERVER_H_

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "daemon/engine/engine.h"
#include "daemon/memory/segment_pool.h"
#include "daemon/sessions/session_registry.h"
#include "storage/base/clock.h"
#include "storage/base/unique_fd.h"
#include "storage/fs/posix_file_system.h"

namespace ckptd {

// Receives what happens on the socket. Called on the server's thread: implementations must not block.
class HandoffDelegate {
 public:
  virtual ~HandoffDelegate() = default;

  // Called before the client gets its token.
  virtual void SessionOpened(const SessionInfo& session, const FileUser& user) = 0;

  struct SessionEnd {
    SessionId session = 0;
    std::string why;       // "said goodbye", "its process ended", "the connection was closed", ...
    bool goodbye = false;  // The client said Goodbye.
    bool keeper = false;   // It kept a private daemon open. SessionRegistry::keepers() no longer counts it.
  };
  // Called when the session's token has become invalid.
  virtual void SessionClosed(const SessionEnd& end) = 0;

  using AttachReply = absl::AnyInvocable<void(absl::StatusOr<std::string>)>;
  // `root` is a directory, possibly open with O_PATH. The server has not touched its file system, which could
  // hang. `path` is absolute and only for messages; or it is the URL of a bucket, without a `root`. `reply` may
  // be called on any thread, at once or later, even when the session or the server is gone.
  virtual void AttachRoot(const SessionInfo& session, UniqueFd root, std::string path, AttachReply reply) = 0;
};

struct HandoffOptions {
  std::string socket_path;  // Complete, with its suffix `.handoff`.
  mode_t mode = 0660;
  std::optional<gid_t> group;
  int max_connections = 2048;  // Including those that have not said Hello yet.
  int max_connections_per_uid = 2048;
  std::string daemon_instance;
  std::string daemon_version;
  Duration hello_timeout = std::chrono::seconds(10);
  // Most descriptors in answers that clients have not read (unread_descriptors.h). One connection has at most
  // those of one answer (64).
  int max_unread_descriptors = 0;          // 0: half of RLIMIT_NOFILE.
  int max_unread_descriptors_per_uid = 0;  // 0: a quarter of max_unread_descriptors, at least 64.
  // How long an answer waits for descriptors to be read. Then the connections that have left theirs unread
  // for that long are closed, and an answer that waited for others becomes the error LIMIT_EXCEEDED.
  Duration read_timeout = std::chrono::seconds(10);
  Duration listen_timeout = Duration::zero();  // As UnixListenerOptions::timeout.
};

class HandoffServer {
 public:
  // Serves from the return on. `log` gets a line, on the server's thread, for each connection that is refused
  // or closed for a fault of the peer. Fails as ListenUnix does, for example when another daemon listens on
  // the socket.
  static absl::StatusOr<std::unique_ptr<HandoffServer>> Start(HandoffOptions options,
                                                              SessionRegistry* registry,
                                                              SegmentDirectory* directory,
                                                              HandoffDelegate* delegate,
                                                              std::function<void(const std::string&)> log);
  // Closes the connections without calling the delegate, and removes the socket's file.
  ~HandoffServer();

  // For connections from now on.
  void SetMostConnectionsPerUser(int connections);

  // Turns of the loop since the start, at least one a second while the thread is alive. The watchdog reads
  // it.
  int64_t turns() const;

 private:
  HandoffServer();
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_HANDOFF_HANDOFF_SERVER_H_
