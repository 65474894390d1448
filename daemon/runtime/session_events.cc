#include "daemon/runtime/session_events.h"

#include <atomic>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "daemon/service/peer_namespaces.h"

namespace ckptd {

void SessionEvents::SessionOpened(const SessionInfo& session, const FileUser&) {
  context_->loop->Post([engine = context_->engine, session] { engine->SessionOpened(session); });
}

void SessionEvents::SessionClosed(const SessionEnd& end) {
  context_->loop->Post([engine = context_->engine, session = end.session, why = end.why] {
    engine->SessionClosed(session, why);
  });
  if (end.goodbye && end.keeper && context_->sessions->keepers() == 0) last_keeper_left_();
}

void SessionEvents::AttachRoot(const SessionInfo& session, UniqueFd root, std::string path,
                               AttachReply reply) {
  absl::StatusOr<FileUser> user = context_->sessions->UserOf(session.id);
  if (!user.ok()) return reply(user.status());
  context_->workers->Submit([context = context_, id = session.id, pid = session.pid, root = std::move(root),
                             path = std::move(path), user = *std::move(user),
                             reply = std::move(reply)]() mutable {
    if (const std::optional<mode_t> umask = UmaskOfPeer(pid)) {
      user.umask = std::make_shared<std::atomic<mode_t>>(*umask);
    }
    absl::StatusOr<RootAttachment> attachment = context->make_attachment(std::move(root), path, user);
    if (!attachment.ok()) return reply(attachment.status());
    context->loop->Post(
        [context, id, attachment = *std::move(attachment), reply = std::move(reply)]() mutable {
          context->engine->AttachRoot(id, std::move(attachment), std::move(reply));
        });
  });
}

}  // namespace ckptd
