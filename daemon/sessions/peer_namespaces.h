// Finds out from /proc whether the process at the other end of a Unix socket is in the daemon's namespaces,
// and its umask.
//
// A path names the same directory, and uid 0 is this machine's root, only for a peer with the same root
// directory, mount namespace and user namespace. /proc/PID/ns shows that directly, but needs CAP_SYS_PTRACE
// for a peer that has more capabilities than this process. /proc/PID/mountinfo and uid_map need no privilege:
// each mount belongs to one mount namespace and has its own id, so two processes whose "/" is the same mount
// share the namespace and the root directory.
#ifndef CKPTD_DAEMON_SESSIONS_PEER_NAMESPACES_H_
#define CKPTD_DAEMON_SESSIONS_PEER_NAMESPACES_H_

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

namespace ckptd {

enum class PeerOrigin {
  kHost,     // The same root, mount and user namespace as this process, or as process 1 of its pid namespace.
  kForeign,  // Another namespace: a container.
  kUnknown,  // /proc hides the peer (hidepid), or belongs to another pid namespace.
};

struct PeerNamespaces {
  PeerOrigin origin = PeerOrigin::kUnknown;
  // For a foreign peer: equal for peers with the same "/" while one of them lives; -1 if unknown. 0 for
  // others.
  int64_t tenant = 0;
  std::string why;  // For messages, unless kHost: "it is in another mount namespace", ...
};

// `pid` is the peer's pid in this process's pid namespace, 0 if it has none. Does not wait for the peer;
// reads at most 1 MiB of /proc. Tests give another `proc`.
PeerNamespaces NamespacesOfPeer(int socket, pid_t pid, const std::string& proc = "/proc");

// Returns the current umask of the process's first thread; nullopt if /proc hides it, or `pid` is 0.
std::optional<mode_t> UmaskOfPeer(pid_t pid, const std::string& proc = "/proc");

}  // namespace ckptd
#endif  // CKPTD_DAEMON_SESSIONS_PEER_NAMESPACES_H_
