#include "daemon/sessions/peer_table.h"

#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"

namespace ckptd {

absl::StatusOr<Peer> PeerOfSocket(int fd) {
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    return ErrnoError(errno, "getsockopt SO_PEERCRED");
  }
  Peer peer{.user = {.uid = credentials.uid, .gid = credentials.gid, .groups = {}},
            .pid = credentials.pid,
            .namespaces = NamespacesOfPeer(fd, credentials.pid)};
  length = 0;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, nullptr, &length) != 0 && errno == ERANGE) {
    peer.user.groups.resize(length / sizeof(gid_t));
    if (::getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, peer.user.groups.data(), &length) != 0) {
      return ErrnoError(errno, "getsockopt SO_PEERGROUPS");
    }
  }
  return peer;
}

void PeerTable::Add(int fd, Peer peer) {
  MutexLock lock(mutex_);
  peers_[absl::StrCat("fd:", fd)] = std::move(peer);
}

std::optional<Peer> PeerTable::Find(const std::string& name) const {
  MutexLock lock(mutex_);
  const auto found = peers_.find(name);
  if (found == peers_.end()) return std::nullopt;
  return found->second;
}

}  // namespace ckptd
