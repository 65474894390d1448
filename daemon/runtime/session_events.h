// Passes the events of the hand-off socket on to the engine's thread.
#ifndef CKPTD_DAEMON_RUNTIME_SESSION_EVENTS_H_
#define CKPTD_DAEMON_RUNTIME_SESSION_EVENTS_H_

#include <functional>
#include <string>

#include "daemon/grpc/base/service_context.h"
#include "daemon/handoff/handoff_server.h"

namespace ckptd {

class SessionEvents final : public HandoffDelegate {
 public:
  // `last_keeper_left` runs, on the hand-off server's thread, when the last session that kept a private
  // daemon open has said Goodbye.
  SessionEvents(ServiceContext* context, std::function<void()> last_keeper_left)
      : context_(context), last_keeper_left_(std::move(last_keeper_left)) {}

  void SessionOpened(const SessionInfo& session, const FileUser& user) override;
  void SessionClosed(const SessionEnd& end) override;
  void AttachRoot(const SessionInfo& session, UniqueFd root, std::string path, AttachReply reply) override;

 private:
  ServiceContext* const context_;
  const std::function<void()> last_keeper_left_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_RUNTIME_SESSION_EVENTS_H_
