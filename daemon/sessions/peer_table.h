// Who is at the other end of each gRPC connection. gRPC never tells; we accept the connections ourselves and
// ask the socket before gRPC takes it over.
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
  pid_t pid = 0;  // 0 when it is in another pid namespace.
  PeerNamespaces namespaces;
};

// SO_PEERCRED and SO_PEERGROUPS: as they were when the peer connected. Its namespaces as they are now.
absl::StatusOr<Peer> PeerOfSocket(int fd);

// Thread-safe.
class PeerTable {
 public:
  // Before the connection goes to gRPC, which names it "fd:N". Takes the place of an earlier connection of
  // that number.
  void Add(int fd, Peer peer);
  // `name` is grpc::ServerContextBase::peer().
  std::optional<Peer> Find(const std::string& name) const;

 private:
  mutable Mutex mutex_;
  std::map<std::string, Peer> peers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_SESSIONS_PEER_TABLE_H_
