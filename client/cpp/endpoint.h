// Where a daemon listens, and how a client names its launch.
#ifndef CKPTD_CLIENT_CPP_ENDPOINT_H_
#define CKPTD_CLIENT_CPP_ENDPOINT_H_

#include <string>

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

// A launch id made of the boot id, the parent's pid and its start time. A later process with the same pid has
// another one.
std::string LaunchIdOfParent();

// 128 random bits in hex.
std::string RandomHex128();

}  // namespace ckptd::client
#endif  // CKPTD_CLIENT_CPP_ENDPOINT_H_
