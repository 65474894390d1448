// Who makes a gRPC call, and by what right: its connection's peer, and the session that its token stands for.
#ifndef CKPTD_DAEMON_SESSIONS_CALL_AUTHENTICATOR_H_
#define CKPTD_DAEMON_SESSIONS_CALL_AUTHENTICATOR_H_

#include <sys/types.h>

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/engine/engine.h"
#include "daemon/sessions/peer_table.h"
#include "daemon/sessions/session_registry.h"

namespace ckptd {

enum class TokenRule {
  kRequired,  // A trainer's call.
  kOptional,  // An operator's, too: known by uid alone. A token that is there must be good.
};

// Thread-safe.
class CallAuthenticator {
 public:
  // Root and `daemon_uid` are privileged where they are of the daemon's namespaces, or where
  // `trust_all_namespaces` says that it does not matter. The overflow uid, which stands for everybody whose
  // user namespace we do not know, is nobody.
  CallAuthenticator(const PeerTable* peers, const SessionRegistry* sessions, uid_t daemon_uid,
                    uid_t overflow_uid, bool trust_all_namespaces = false);

  // `peer_name` is grpc::ServerContextBase::peer(); ask at the start of a call. PERMISSION_DENIED, reason
  // WRONG_UID.
  absl::StatusOr<Peer> FindPeer(const std::string& peer_name) const;
  // UNAUTHENTICATED, reason UNKNOWN_TOKEN; PERMISSION_DENIED, reason WRONG_UID.
  absl::StatusOr<Caller> Find(const std::string& peer_name, const std::optional<std::string>& token,
                              TokenRule rule) const;

 private:
  const PeerTable* const peers_;
  const SessionRegistry* const sessions_;
  const uid_t daemon_uid_;
  const uid_t overflow_uid_;
  const bool trust_all_namespaces_;
};

// /proc/sys/kernel/overflowuid; 65534 when it cannot be read.
uid_t OverflowUid();

}  // namespace ckptd
#endif  // CKPTD_DAEMON_SESSIONS_CALL_AUTHENTICATOR_H_
