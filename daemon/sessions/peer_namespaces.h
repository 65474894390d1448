// What /proc tells of the process at the other end of a Unix socket: in which namespaces it lives, compared
// with this daemon's, and its umask.
//
// A path names the same directory, and uid 0 is this machine's root, only for a peer with the same root
// directory, mount namespace and user namespace. /proc/PID/ns tells that directly, but needs CAP_SYS_PTRACE
// for a peer that has more capabilities than this process. /proc/PID/mountinfo and uid_map need no right at
// all: each mount belongs to one mount namespace and has an id of its own, so two processes whose "/" is the
// same mount share the namespace and the root directory.
#ifndef CKPTD_DAEMON_SESSIONS_PEER_NAMESPACES_H_
#define CKPTD_DAEMON_SESSIONS_PEER_NAMESPACES_H_

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

namespace ckptd {

enum class PeerOrigin {
  kHost,     // The same root, mount and user namespace as this process, or as process 1 of its pid namespace.
  kForeign,  // Another one: a container.
  kUnknown,  // This process may not look (hidepid), or /proc is not that of its pid namespace.
};

struct PeerNamespaces {
  PeerOrigin origin = PeerOrigin::kUnknown;
  // Of a foreign peer: equal for peers with the same "/" as long as one of them lives; -1 when that could
  // not be found out. 0 for others.
  int64_t tenant = 0;
  std::string why;  // Unless kHost: "it is in another mount namespace", ... For messages.
};

// `pid` is the peer's in this process's pid namespace, 0 when it has none there. Does not wait for the peer;
// reads at most 1 MiB of /proc. `proc`: /proc, or what stands for it in tests.
PeerNamespaces NamespacesOfPeer(int socket, pid_t pid, const std::string& proc = "/proc");

// What the process takes away from the modes of the files that it makes; nothing when this process may not
// look, or `pid` is 0. It is the process's first thread's, as it is now.
std::optional<mode_t> UmaskOfPeer(pid_t pid, const std::string& proc = "/proc");

}  // namespace ckptd
#endif  // CKPTD_DAEMON_SESSIONS_PEER_NAMESPACES_H_
