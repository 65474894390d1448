// Where a daemon listens, and how a client names its launch.
#ifndef CKPTD_CLIENT_CPP_SESSION_ENDPOINT_H_
#define CKPTD_CLIENT_CPP_SESSION_ENDPOINT_H_

#include <sys/types.h>

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ckptd::client {

inline constexpr char kDefaultEndpoint[] = "unix:/run/ckptd/ckptd.sock";

struct Endpoint {
  std::string text;          // As given: "unix:/run/ckptd/ckptd.sock".
  std::string socket_path;   // The gRPC socket.
  std::string handoff_path;  // The hand-off socket, for descriptors.
};

// Parses `unix:/path`, an absolute path of at most 99 bytes. Empty: $CKPTD_ENDPOINT, or kDefaultEndpoint if
// that is not set. INVALID_ARGUMENT names the value and what was expected.
absl::StatusOr<Endpoint> ParseEndpoint(const std::string& text);

// Checks that root, this user, or the owner of the socket's directory serves a socket: in a directory where
// everybody may write, another user may have made it first. The owner of the directory decides what lies in
// it. A user namespace shows users of outside as one uid, which is then that of the directory, too.
//
// `server`: the uid of the process that listens there; unset: the owner of the socket. PERMISSION_DENIED,
// reason WRONG_UID: another user serves it. OK if there is no such socket: connecting says so.
absl::Status CheckServer(const std::string& socket_path, std::optional<uid_t> server = std::nullopt);

// A launch id made of the boot id, the parent's pid and its start time. A later process with the same pid has
// another one.
std::string LaunchIdOfParent();

// 128 random bits in hex.
std::string RandomHex128();

}  // namespace ckptd::client
#endif  // CKPTD_CLIENT_CPP_SESSION_ENDPOINT_H_
