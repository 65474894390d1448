// The block `cluster` of the configuration: its defaults, its checks, and the files that it names.
#ifndef CKPTD_DAEMON_CONFIG_CLUSTER_CONFIG_H_
#define CKPTD_DAEMON_CONFIG_CLUSTER_CONFIG_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ckptd/config/v1/config.pb.h"

namespace ckptd {

// Fills in what is not set. The name of the node is the machine's host name, unless that says nothing
// ("localhost").
void SetClusterDefaults(config::v1::ClusterConfig* cluster);

// Returns a message for each value that is wrong: the field, the value, and what to write. Reads no file.
std::vector<std::string> CheckCluster(const config::v1::ClusterConfig& cluster);

// Returns a message for each file of the block that cannot be read, does not hold what it should, or holds a
// secret that other users can read. Blocks on the file system.
std::vector<std::string> CheckClusterFiles(const config::v1::ClusterConfig& cluster);

// host:port of each member, as CheckCluster has accepted them.
std::vector<std::string> EtcdHosts(const config::v1::ClusterConfig& cluster);
// Whether the members are reached by TLS.
bool UsesTls(const config::v1::ClusterConfig& cluster);

// INVALID_ARGUMENT, or the error of reading, unless the file holds one line that is not empty and other users
// cannot read it.
absl::StatusOr<std::string> ReadEtcdPassword(const std::string& file);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_CONFIG_CLUSTER_CONFIG_H_
