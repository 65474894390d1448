// Loads the daemon's configuration, a text proto (proto/ckptd/config/v1): fills in every default and checks
// every value.
#ifndef CKPTD_DAEMON_CONFIG_CONFIG_H_
#define CKPTD_DAEMON_CONFIG_CONFIG_H_

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "ckptd/config/v1/config.pb.h"

namespace ckptd {

// Values of the command line, which override those of the file.
struct ConfigOverrides {
  std::optional<std::string> socket_path;
  std::optional<std::string> state_directory;
  std::optional<int64_t> pool_bytes;
  std::optional<int32_t> metrics_port;
  std::optional<std::string> io_backend;  // "auto", "io_uring" or "threads".
  std::optional<std::string> log_level;
};

struct LoadedConfig {
  config::v1::DaemonConfig config;    // Every field is set, unless there are problems.
  std::vector<std::string> problems;  // Each names the place or the field, the value, and what is allowed.
};

// Parses `text`, applies the overrides and the defaults, and checks everything. Depends on its arguments
// only, except for the names of groups and of this machine. `source` is the file name for messages.
// `memory_bytes` is the machine's memory; the default pool is a quarter of it.
LoadedConfig LoadConfig(std::string_view text, std::string_view source, const ConfigOverrides& overrides,
                        int64_t memory_bytes);

// Names the fields that differ, such as "pool.bytes", in the order of their numbers.
std::vector<std::string> ChangedFields(const config::v1::DaemonConfig& before,
                                       const config::v1::DaemonConfig& after);
// The value of a field that ChangedFields has named, as text.
std::string FieldText(const config::v1::DaemonConfig& config, const std::string& field);

// Returns the machine's memory in bytes (MemTotal).
absl::StatusOr<int64_t> MachineMemoryBytes();

// Finds a group by its number or by its name in /etc/group, which it reads itself because a static program
// cannot load name services. NOT_FOUND, reason UNKNOWN_GROUP.
absl::StatusOr<gid_t> FindGroup(const std::string& name_or_number);
// Reads metrics.token_file and strips surrounding white space. INVALID_ARGUMENT unless it holds 16 to 1000
// printable characters.
absl::StatusOr<std::string> ReadToken(const std::string& file);
// Returns an octal mode such as "0660" as a number. Precondition: LoadConfig has accepted it.
mode_t SocketMode(const std::string& octal);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_CONFIG_CONFIG_H_
