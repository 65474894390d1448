// The hand-off socket: where sessions begin and end, and where descriptors pass. Frames:
// proto/ckptd/v1/handoff.proto.
//
// A session is a connection and the process that made it; it ends when either does, whichever is first: a
// forked child of the process may hold the connection open long after. Whatever a peer sends, the worst that
// happens is that its connection is closed.
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

// What happens on the socket, told on the server's thread: nothing here may block.
class HandoffDelegate {
 public:
  virtual ~HandoffDelegate() = default;

  // Before the client hears of its token.
  virtual void SessionOpened(const SessionInfo& session, const FileUser& user) = 0;

  struct SessionEnd {
    SessionId session = 0;
    std::string why;       // "said goodbye", "its process ended", "the connection was closed", ...
    bool goodbye = false;  // On purpose.
    bool keeper =
        false;  // It held a private daemon open; SessionRegistry::keepers() does not count it any more.
  };
  // Its token is not valid any more.
  virtual void SessionClosed(const SessionEnd& end) = 0;

  using AttachReply = absl::AnyInvocable<void(absl::StatusOr<std::string>)>;
  // `root` is a directory, possibly open with O_PATH, and was not looked at further: that could hang. `path`
  // is absolute, for people. `reply` may be called on any thread, now or later, also when the session or the
  // server is gone.
  virtual void AttachRoot(const SessionInfo& session, UniqueFd root, std::string path, AttachReply reply) = 0;
};

struct HandoffOptions {
  std::string socket_path;  // With `.handoff` behind.
  mode_t mode = 0660;
  std::optional<gid_t> group;
  int max_connections = 2048;  // Sessions, and those that have not said Hello yet.
  int max_connections_per_uid = 2048;
  std::string daemon_instance;
  std::string daemon_version;
  Duration hello_timeout = std::chrono::seconds(10);
  // Descriptors in answers that clients have not read. The kernel counts them all together, as those of the
  // daemon's user, and lets it have RLIMIT_NOFILE. One connection has at most those of one answer (64).
  int max_unread_descriptors = 0;          // 0: half of RLIMIT_NOFILE.
  int max_unread_descriptors_per_uid = 0;  // 0: a quarter of max_unread_descriptors, at least 64.
  // How long an answer waits because of unread descriptors. Then the connections that have left theirs unread
  // for so long are closed; an answer that waited for others gets the error LIMIT_EXCEEDED.
  Duration read_patience = std::chrono::seconds(10);
  Duration listen_patience = Duration::zero();  // As UnixListenerOptions::patience.
};

class HandoffServer {
 public:
  // Serves from the return on. `log` gets a line for each connection that is closed for its fault; on the
  // server's thread. Fails as ListenUnix does, among others when another daemon listens there.
  static absl::StatusOr<std::unique_ptr<HandoffServer>> Start(HandoffOptions options,
                                                              SessionRegistry* registry,
                                                              SegmentDirectory* directory,
                                                              HandoffDelegate* delegate,
                                                              std::function<void(const std::string&)> log);
  // Closes the connections, does not tell the delegate, and removes the socket's file.
  ~HandoffServer();

  // Turns of its loop since the start, at least one a second: the watchdog sees that it lives.
  int64_t turns() const;

 private:
  HandoffServer();
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_HANDOFF_HANDOFF_SERVER_H_
