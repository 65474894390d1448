#include "daemon/config/cluster_config.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "daemon/config/shared_folders.h"
#include "daemon/config/trusted_file.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

using config::v1::ClusterConfig;

constexpr char kHttps[] = "https://";
constexpr char kHttp[] = "http://";
constexpr size_t kMaxNodeName = 253, kMaxNodeNameInRoots = 200, kMaxPrefix = 200, kMaxPassword = 1000;
constexpr int kMaxEndpoints = 16;

class Problems {
 public:
  void Add(const char* field, const std::string& what) {
    found_.push_back(absl::StrCat("cluster.", field, ": ", what));
  }
  void Range(const char* field, int64_t value, int64_t low, int64_t high) {
    if (value < low || value > high) Add(field, absl::StrCat(value, " is not in [", low, ", ", high, "]"));
  }
  std::vector<std::string> found() && { return std::move(found_); }

 private:
  std::vector<std::string> found_;
};

// Empty if the machine has none of its own.
std::string HostName() {
  char name[kMaxNodeName + 1] = {};
  if (::gethostname(name, sizeof name - 1) != 0) return "";
  const std::string found = name;
  return found == "localhost" || absl::StartsWith(found, "localhost.") || found == "(none)" ? "" : found;
}

bool IsNodeName(const std::string& name) {
  if (name.empty() || name.size() > kMaxNodeName || !absl::ascii_isalnum(name[0])) return false;
  return std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-';
  });
}

void CheckName(const ClusterConfig& cluster, Problems& problems) {
  const std::string& name = cluster.node_name();
  if (name.empty()) {
    return problems.Add("node_name",
                        "this machine has no host name of its own, and each node needs another name; write "
                        "node_name: \"NAME\"");
  }
  if (!IsNodeName(name)) {
    return problems.Add(
        "node_name",
        absl::StrCat("\"", absl::CHexEscape(name), "\" is no name of a node; write 1 to ", kMaxNodeName,
                     " letters, digits, '.', '_' and '-', beginning with a letter or a digit"));
  }
  // Files in shared roots are named after the node, by the rules of tags.
  if (cluster.shared_folders().empty() || (name.size() <= kMaxNodeNameInRoots && name != "latest")) return;
  problems.Add("node_name", absl::StrCat("\"", name, "\" cannot be a part of file names in shared_folders; ",
                                         "write another name of 1 to ", kMaxNodeNameInRoots, " characters"));
}

// What follows the scheme; empty: there is no scheme that we know.
std::string AfterScheme(const std::string& url) {
  for (const std::string& scheme : {std::string(kHttps), std::string(kHttp)}) {
    if (absl::StartsWith(url, scheme)) return url.substr(scheme.size());
  }
  return "";
}

bool IsHostAndPort(const std::string& text) {
  const size_t colon = text.rfind(':');
  int port = 0;
  if (colon == std::string::npos || colon == 0 || !absl::SimpleAtoi(text.substr(colon + 1), &port))
    return false;
  const std::string host = text.substr(0, colon);
  const bool in_brackets = host.front() == '[' && host.back() == ']';
  const bool plain = host.find_first_of("/@?# \t:[]") == std::string::npos;
  return port >= 1 && port <= 65535 && (in_brackets || plain);
}

void CheckEndpoint(const std::string& endpoint, Problems& problems) {
  const std::string host = AfterScheme(endpoint);
  if (host.empty()) {
    return problems.Add(
        "etcd_endpoints",
        absl::StrCat("\"", endpoint, "\" does not begin with https:// or http://; write \"https://",
                     IsHostAndPort(endpoint) ? endpoint : "10.0.0.1:2379",
                     "\", or http:// if this etcd has no TLS"));
  }
  if (IsHostAndPort(host)) return;
  problems.Add("etcd_endpoints", absl::StrCat("\"", endpoint,
                                              "\" is not a scheme, a host and a port; write for example "
                                              "\"https://10.0.0.1:2379\" or \"https://[fd00::1]:2379\""));
}

void CheckEndpoints(const ClusterConfig& cluster, Problems& problems) {
  const auto& endpoints = cluster.etcd_endpoints();
  if (endpoints.empty() || endpoints.size() > kMaxEndpoints) {
    return problems.Add("etcd_endpoints",
                        absl::StrCat(endpoints.size(), " endpoints; write 1 to ", kMaxEndpoints,
                                     ", a line for each member of etcd, such as "
                                     "etcd_endpoints: \"https://10.0.0.1:2379\""));
  }
  for (const std::string& endpoint : endpoints) CheckEndpoint(endpoint, problems);
  for (const std::string& endpoint : endpoints) {
    if (absl::StartsWith(endpoint, kHttps) == absl::StartsWith(endpoints[0], kHttps)) continue;
    return problems.Add(
        "etcd_endpoints",
        absl::StrCat("\"", endpoints[0], "\" and \"", endpoint,
                     "\" mix https and http; write https:// for all of them, or http:// for all "
                     "if this etcd has no TLS"));
  }
}

struct NamedFile {
  const char* field;
  const std::string& path;
  bool secret = false;
};

std::vector<NamedFile> FilesOfTls(const ClusterConfig& cluster) {
  return {{"etcd_ca_file", cluster.etcd_ca_file()},
          {"etcd_certificate_file", cluster.etcd_certificate_file()},
          {"etcd_key_file", cluster.etcd_key_file(), /*secret=*/true}};
}

void CheckPair(const NamedFile& one, const NamedFile& other, Problems& problems) {
  if (one.path.empty() == other.path.empty()) return;
  const NamedFile& missing = one.path.empty() ? one : other;
  const NamedFile& given = one.path.empty() ? other : one;
  problems.Add(missing.field, absl::StrCat("is missing, and ", given.field, " is \"", given.path,
                                           "\"; write both, or none of them"));
}

void CheckCredentials(const ClusterConfig& cluster, Problems& problems) {
  CheckPair({"etcd_certificate_file", cluster.etcd_certificate_file()},
            {"etcd_key_file", cluster.etcd_key_file()}, problems);
  CheckPair({"etcd_user", cluster.etcd_user()}, {"etcd_password_file", cluster.etcd_password_file()},
            problems);
  std::vector<NamedFile> files = FilesOfTls(cluster);
  const bool http = !cluster.etcd_endpoints().empty() && !UsesTls(cluster);
  for (const NamedFile& file : files) {
    if (file.path.empty() || !http) continue;
    problems.Add(file.field, absl::StrCat("\"", file.path, "\" is of no use to ", cluster.etcd_endpoints(0),
                                          "; write https:// at the endpoints, or remove this line"));
  }
  files.push_back({"etcd_password_file", cluster.etcd_password_file()});
  for (const NamedFile& file : files) {
    if (file.path.empty() || (file.path[0] == '/' && file.path.find('\0') == std::string::npos)) continue;
    problems.Add(file.field, absl::StrCat("\"", absl::CHexEscape(file.path), "\" is not an absolute path"));
  }
}

void CheckPrefix(const std::string& prefix, Problems& problems) {
  const bool printable =
      std::all_of(prefix.begin(), prefix.end(), [](unsigned char c) { return c > ' ' && c < 0x7f; });
  if (!prefix.empty() && prefix.size() <= kMaxPrefix && printable && prefix.back() == '/') return;
  problems.Add("etcd_prefix", absl::StrCat("\"", absl::CHexEscape(prefix), "\" is not 1 to ", kMaxPrefix,
                                           " printable characters with a slash at the end; write for example "
                                           "\"/ckptd/\""));
}

// ---- files

absl::Status CheckPem(const NamedFile& file) {
  CKPTD_ASSIGN_OR_RETURN(const std::string text,
                         ReadTrustedFile(file.path, file.secret ? FileAccess::kSecret : FileAccess::kPublic));
  const char* const kind = file.secret ? "PRIVATE KEY-----" : "-----BEGIN CERTIFICATE-----";
  if (absl::StrContains(text, kind)) return absl::OkStatus();
  return InvalidArgument(absl::StrCat(file.path, " holds no ", file.secret ? "private key" : "certificate",
                                      " in PEM form (no line with ", kind, ")"));
}

}  // namespace

void SetClusterDefaults(ClusterConfig* cluster) {
  if (cluster->node_name().empty()) cluster->set_node_name(HostName());
  if (cluster->etcd_prefix().empty()) cluster->set_etcd_prefix("/ckptd/");
  if (cluster->lease_seconds() == 0) cluster->set_lease_seconds(10);
  if (cluster->etcd_timeout_seconds() == 0) cluster->set_etcd_timeout_seconds(10);
  if (cluster->node_grace_seconds() == 0) cluster->set_node_grace_seconds(30);
  if (cluster->visibility_seconds() == 0) cluster->set_visibility_seconds(5);
}

std::vector<std::string> CheckCluster(const ClusterConfig& cluster) {
  Problems problems;
  CheckName(cluster, problems);
  CheckEndpoints(cluster, problems);
  CheckCredentials(cluster, problems);
  CheckPrefix(cluster.etcd_prefix(), problems);
  problems.Range("lease_seconds", cluster.lease_seconds(), 2, 600);
  problems.Range("etcd_timeout_seconds", cluster.etcd_timeout_seconds(), 1, 300);
  problems.Range("node_grace_seconds", cluster.node_grace_seconds(), 1, 3600);
  problems.Range("visibility_seconds", cluster.visibility_seconds(), 1, 30);
  for (const std::string& wrong : CheckSharedFolders(cluster.shared_folders()))
    problems.Add("shared_folders", wrong);
  return std::move(problems).found();
}

std::vector<std::string> CheckClusterFiles(const ClusterConfig& cluster) {
  Problems problems;
  const auto add = [&problems](const char* field, const absl::Status& wrong) {
    if (!wrong.ok()) problems.Add(field, std::string(wrong.message()));
  };
  for (const NamedFile& file : FilesOfTls(cluster)) {
    if (!file.path.empty()) add(file.field, CheckPem(file));
  }
  const std::string& password = cluster.etcd_password_file();
  if (!password.empty()) add("etcd_password_file", ReadEtcdPassword(password).status());
  return std::move(problems).found();
}

std::vector<std::string> EtcdHosts(const ClusterConfig& cluster) {
  std::vector<std::string> hosts;
  for (const std::string& endpoint : cluster.etcd_endpoints()) hosts.push_back(AfterScheme(endpoint));
  return hosts;
}

bool UsesTls(const ClusterConfig& cluster) {
  return !cluster.etcd_endpoints().empty() && absl::StartsWith(cluster.etcd_endpoints(0), kHttps);
}

absl::StatusOr<std::string> ReadEtcdPassword(const std::string& file) {
  CKPTD_ASSIGN_OR_RETURN(std::string password, ReadTrustedFile(file, FileAccess::kSecret));
  while (!password.empty() && (password.back() == '\n' || password.back() == '\r')) password.pop_back();
  if (password.empty() || password.size() > kMaxPassword || password.find('\n') != std::string::npos) {
    return InvalidArgument(absl::StrCat(file, " must hold a password of 1 to ", kMaxPassword,
                                        " characters, in one line and nothing else"));
  }
  return password;
}

}  // namespace ckptd
