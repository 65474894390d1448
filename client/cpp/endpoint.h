// Where a daemon answers, and how a client names its launch.
#ifndef CKPTD_CLIENT_CPP_ENDPOINT_H_
#define CKPTD_CLIENT_CPP_ENDPOINT_H_

#include <string>

#include "absl/status/statusor.h"

namespace ckptd::client {

inline constexpr char kDefaultEndpoint[] = "unix:/run/ckptd/ckptd.sock";

struct Endpoint {
  std::string text;          // "unix:/run/ckptd/ckptd.sock".
  std::string socket_path;   // gRPC.
  std::string handoff_path;  // Descriptors.
};

// `unix:/path`, absolute, at most 99 bytes of path. Empty: $CKPTD_ENDPOINT, else the default.
// INVALID_ARGUMENT, reason INVALID_ARGUMENT, names the value and what was expected.
absl::StatusOr<Endpoint> ParseEndpoint(const std::string& text);

// A launch named after the parent process: boot, pid and start time, so that a later process with that pid is
// another.
std::string LaunchIdOfParent();

// 128 random bits in hex.
std::string RandomHex128();

}  // namespace ckptd::client
#endif  // CKPTD_CLIENT_CPP_ENDPOINT_H_
