// `convert nxd-zero`: its arguments and its output.
#ifndef CKPTD_CLIENT_CKPTCTL_CONVERT_CONVERT_H_
#define CKPTD_CLIENT_CKPTCTL_CONVERT_CONVERT_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "client/ckptctl/commands/commands.h"
#include "client/ckptctl/commands/exit_codes.h"

namespace ckptd::ctl {

// The flags of NxD's own converter, and ours.
struct ConvertArguments {
  std::string input_dir, output_dir;
  bool to_full = false, to_sharded = false;
  std::optional<int64_t> dp_size;
  int num_workers = 1;  // Accepted for compatibility, and ignored.
  bool dry_run = false;
  bool force = false;  // Convert a tag even if its save has not ended.
};

// Works without a daemon. SIGINT and SIGTERM stop it: it removes what it wrote and returns ABORTED, reason
// INTERRUPTED.
absl::StatusOr<ExitCode> ConvertNxdZero(const Context& context, const ConvertArguments& arguments);

}  // namespace ckptd::ctl
#endif  // CKPTD_CLIENT_CKPTCTL_CONVERT_CONVERT_H_
