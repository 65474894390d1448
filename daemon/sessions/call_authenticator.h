// Authenticates gRPC calls: finds the peer of the connection and the session of the token.
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
  kRequired,  // Only a session may call.
  kOptional,  // An operator may call, too, identified by uid alone. A token that is sent must be valid.
};

// Thread-safe.
class CallAuthenticator {
 public:
  // Root and `daemon_uid` are privileged if they are in the daemon's namespaces, or if
  // `trust_all_namespaces`. Calls of `overflow_uid`, which stands for all users without a mapping in this
  // user namespace, are refused.
  CallAuthenticator(const PeerTable* peers, const SessionRegistry* sessions, uid_t daemon_uid,
                    uid_t overflow_uid, bool trust_all_namespaces = false);

  // `peer_name` is grpc::ServerContextBase::peer(). Call it at the start of a gRPC call. PERMISSION_DENIED,
  // reason WRONG_UID, if the peer is unknown or has the overflow uid.
  absl::StatusOr<Peer> FindPeer(const std::string& peer_name) const;
  // UNAUTHENTICATED, reason UNKNOWN_TOKEN, if the token is missing or unknown; PERMISSION_DENIED, reason
  // WRONG_UID, also if the session is another user's.
  absl::StatusOr<Caller> Find(const std::string& peer_name, const std::optional<std::string>& token,
                              TokenRule rule) const;

 private:
  const PeerTable* const peers_;
  const SessionRegistry* const sessions_;
  const uid_t daemon_uid_;
  const uid_t overflow_uid_;
  const bool trust_all_namespaces_;
};

// Returns /proc/sys/kernel/overflowuid; 65534 if it cannot be read.
uid_t OverflowUid();

}  // namespace ckptd
#endif  // CKPTD_DAEMON_SESSIONS_CALL_AUTHENTICATOR_H_
