#include "daemon/sessions/call_authenticator.h"

#include <fstream>

#include "absl/strings/str_cat.h"
#include "daemon/sessions/peer_namespaces.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd {

CallAuthenticator::CallAuthenticator(const PeerTable* peers, const SessionRegistry* sessions,
                                     uid_t daemon_uid, uid_t overflow_uid, bool trust_all_namespaces)
    : peers_(peers),
      sessions_(sessions),
      daemon_uid_(daemon_uid),
      overflow_uid_(overflow_uid),
      trust_all_namespaces_(trust_all_namespaces) {}

absl::StatusOr<Peer> CallAuthenticator::FindPeer(const std::string& peer_name) const {
  std::optional<Peer> peer = peers_->Find(peer_name);
  if (!peer) {
    return MakeError(absl::StatusCode::kPermissionDenied, "WRONG_UID",
                     absl::StrCat("the user of connection ", peer_name, " is unknown; connect again"));
  }
  if (peer->user.uid == overflow_uid_ && overflow_uid_ != daemon_uid_) {
    return MakeError(
        absl::StatusCode::kPermissionDenied, "WRONG_UID",
        absl::StrCat("uid ", overflow_uid_,
                     " stands for all users without a mapping in the daemon's user namespace, so it is "
                     "refused; map the container's user to a user of this machine"));
  }
  return *std::move(peer);
}

absl::StatusOr<Caller> CallAuthenticator::Find(const std::string& peer_name,
                                               const std::optional<std::string>& token,
                                               TokenRule rule) const {
  CKPTD_ASSIGN_OR_RETURN(const Peer peer, FindPeer(peer_name));
  Caller caller;
  caller.uid = peer.user.uid;
  const bool local = trust_all_namespaces_ || peer.namespaces.origin == PeerOrigin::kHost;
  caller.privileged = local && (caller.uid == 0 || caller.uid == daemon_uid_);
  caller.may_name_paths = local;
  if (!trust_all_namespaces_) caller.tenant = peer.namespaces.tenant;
  if (!token && rule == TokenRule::kOptional) return caller;
  if (!token) {
    return MakeError(
        absl::StatusCode::kUnauthenticated, "UNKNOWN_TOKEN",
        "this call needs the token of a session as metadata ckptd-token; Hello or OpenSession gives one");
  }
  CKPTD_ASSIGN_OR_RETURN(const SessionInfo session, sessions_->Find(*token, caller.uid));
  caller.session = session.id;
  return caller;
}

uid_t OverflowUid() {
  uid_t uid = 65534;
  std::ifstream("/proc/sys/kernel/overflowuid") >> uid;
  return uid == 0 ? 65534 : uid;
}

}  // namespace ckptd
