// How to reach etcd.
#ifndef CKPTD_DAEMON_ETCD_GRPC_ETCD_OPTIONS_H_
#define CKPTD_DAEMON_ETCD_GRPC_ETCD_OPTIONS_H_

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/base/clock.h"

namespace ckptd {

struct EtcdTls {
  std::string ca_file;           // PEM: the trusted certificate authorities. Empty: the machine's.
  std::string certificate_file;  // PEM, with key_file: the client's certificate. Empty: none.
  std::string key_file;
};

// The credentials of a daemon: the contents of the files of EtcdTls, and the user.
struct EtcdCredentials {
  std::string ca = {}, certificate = {}, key = {};  // PEM.
  std::string user = {}, password = {};
  bool operator==(const EtcdCredentials&) const = default;
};

struct EtcdOptions {
  std::vector<std::string> endpoints;  // host:port of each member, one at least.
  std::optional<EtcdTls> tls;          // nullopt: no TLS.
  std::string user, password;          // Empty: none.
  // A call is answered within call_timeout: it asks one member after the other, each for try_timeout at most.
  // An election takes two to three seconds in which no member answers.
  Duration call_timeout = std::chrono::seconds(10);
  Duration try_timeout = std::chrono::seconds(3);
  // How long after its failure a member is probed, while another member serves the calls.
  Duration probe_after = std::chrono::seconds(5);
};

// INVALID_ARGUMENT with what to write instead. Reads no files.
absl::Status CheckEtcdOptions(const EtcdOptions& options);
// Reads the files of TLS. INVALID_ARGUMENT of CheckEtcdOptions, or ErrnoError.
absl::StatusOr<EtcdCredentials> ReadEtcdCredentials(const EtcdOptions& options);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ETCD_GRPC_ETCD_OPTIONS_H_
