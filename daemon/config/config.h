// The daemon's configuration: a text proto (proto/ckptd/config/v1), with every default filled in and every
// value checked.
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

// What the command line puts in place of the file's values.
struct ConfigOverrides {
  std::optional<std::string> socket_path;
  std::optional<std::string> state_directory;
  std::optional<int64_t> pool_bytes;
  std::optional<int32_t> metrics_port;
  std::optional<std::string> io_backend;  // "auto", "io_uring" or "threads".
  std::optional<std::string> log_level;
};

struct LoadedConfig {
  config::v1::DaemonConfig config;    // Every field has a value, unless there are problems.
  std::vector<std::string> problems;  // Each names the place or the field, the value, and what it may be.
};

// A pure function of its arguments, but for the names of groups. `source` is what problems call the text: a
// file name. `memory_bytes` is the machine's memory, of which the pool's default is a quarter.
LoadedConfig LoadConfig(std::string_view text, std::string_view source, const ConfigOverrides& overrides,
                        int64_t memory_bytes);

// MemTotal of the machine.
absl::StatusOr<int64_t> MachineMemoryBytes();

// A group by number or by its name in /etc/group (read directly: a static program has no name services).
// NOT_FOUND, reason UNKNOWN_GROUP.
absl::StatusOr<gid_t> FindGroup(const std::string& name_or_number);
// What is in metrics.token_file, without white space around it: 16 to 1000 printable characters, else
// INVALID_ARGUMENT.
absl::StatusOr<std::string> ReadToken(const std::string& file);
// "0660" as a number; only after LoadConfig has accepted it.
mode_t SocketMode(const std::string& octal);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_CONFIG_CONFIG_H_
