#include "daemon/etcd/grpc/etcd_options.h"

#include <cerrno>
#include <fstream>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

absl::Status CheckEndpoint(const std::string& endpoint) {
  if (const size_t scheme = endpoint.find("://"); scheme != std::string::npos) {
    return InvalidArgument(absl::StrCat("etcd's endpoint \"", endpoint, "\" is a URL; write \"",
                                        endpoint.substr(scheme + 3), "\", and configure TLS beside it"));
  }
  const size_t colon = endpoint.rfind(':');
  int port = 0;
  if (colon == std::string::npos || colon == 0 || !absl::SimpleAtoi(endpoint.substr(colon + 1), &port) ||
      port < 1 || port > 65535) {
    return InvalidArgument(absl::StrCat("etcd's endpoint \"", endpoint,
                                        "\" is no host:port; write for example \"10.0.0.1:2379\" or "
                                        "\"[fd00::1]:2379\""));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadPem(const std::string& path) {
  if (path.empty()) return "";
  std::ifstream file(path);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) return ErrnoError(errno, absl::StrCat("reading ", path));
  return text.str();
}

}  // namespace

absl::Status CheckEtcdOptions(const EtcdOptions& options) {
  if (options.endpoints.empty()) {
    return InvalidArgument("etcd has no endpoints; name host:port of each of its members");
  }
  for (const std::string& endpoint : options.endpoints) CKPTD_RETURN_IF_ERROR(CheckEndpoint(endpoint));
  if (options.user.empty() != options.password.empty()) {
    return InvalidArgument("etcd's user and its password are configured together or not at all");
  }
  if (options.tls && options.tls->certificate_file.empty() != options.tls->key_file.empty()) {
    return InvalidArgument("etcd's client certificate and its key are configured together or not at all");
  }
  return absl::OkStatus();
}

absl::StatusOr<EtcdCredentials> ReadEtcdCredentials(const EtcdOptions& options) {
  CKPTD_RETURN_IF_ERROR(CheckEtcdOptions(options));
  EtcdCredentials credentials{.user = options.user, .password = options.password};
  if (!options.tls) return credentials;
  CKPTD_ASSIGN_OR_RETURN(credentials.ca, ReadPem(options.tls->ca_file));
  CKPTD_ASSIGN_OR_RETURN(credentials.certificate, ReadPem(options.tls->certificate_file));
  CKPTD_ASSIGN_OR_RETURN(credentials.key, ReadPem(options.tls->key_file));
  return credentials;
}

}  // namespace ckptd
