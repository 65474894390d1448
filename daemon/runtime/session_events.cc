#include "daemon/runtime/session_events.h"

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "daemon/attach/attach_queue.h"
#include "daemon/sessions/peer_namespaces.h"

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
  const std::string file_system = FileSystemOf(root.get());
  context_->attaches->Submit(
      user->uid, file_system,
      [context = context_, pid = session.pid, root = std::move(root), path = std::move(path),
       user = *user]() mutable {
        if (const std::optional<mode_t> umask = UmaskOfPeer(pid)) {
          user.umask = std::make_shared<std::atomic<mode_t>>(*umask);
        }
        return context->make_attachment(std::move(root), path, user);
      },
      [context = context_, id = session.id,
       reply = std::move(reply)](absl::StatusOr<RootAttachment> attachment) mutable {
        if (!attachment.ok()) return reply(attachment.status());
        context->loop->Post(
            [context, id, attachment = *std::move(attachment), reply = std::move(reply)]() mutable {
              context->engine->AttachRoot(id, std::move(attachment), std::move(reply));
            });
      });
}

}  // namespace ckptd
