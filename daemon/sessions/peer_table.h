// The peer of each gRPC connection. gRPC does not report it, so the daemon accepts the connections itself and
// asks each socket before it hands it to gRPC.
#ifndef CKPTD_DAEMON_SESSIONS_PEER_TABLE_H_
#define CKPTD_DAEMON_SESSIONS_PEER_TABLE_H_

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/sessions/peer_namespaces.h"
#include "storage/base/mutex.h"
#include "storage/fs/posix_file_system.h"

namespace ckptd {

struct Peer {
  FileUser user;
  pid_t pid = 0;  // 0: in another pid namespace.
  PeerNamespaces namespaces;
};

// Returns the credentials that the peer had when it connected (SO_PEERCRED, SO_PEERGROUPS), and its current
// namespaces.
absl::StatusOr<Peer> PeerOfSocket(int fd);

// Thread-safe.
class PeerTable {
 public:
  // Call it before the connection goes to gRPC, which names it "fd:N". Replaces an earlier connection of that
  // number.
  void Add(int fd, Peer peer);
  // `name` is grpc::ServerContextBase::peer().
  std::optional<Peer> Find(const std::string& name) const;

 private:
  mutable Mutex mutex_;
  std::map<std::string, Peer> peers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_SESSIONS_PEER_TABLE_H_
