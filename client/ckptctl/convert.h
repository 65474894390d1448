// `convert nxd-zero`: its command line, and what it says.
#ifndef CKPTD_CLIENT_CKPTCTL_CONVERT_H_
#define CKPTD_CLIENT_CKPTCTL_CONVERT_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "client/ckptctl/commands.h"
#include "client/ckptctl/exit_codes.h"

namespace ckptd::ctl {

// NxD's flags.
struct ConvertArguments {
  std::string input_dir, output_dir;
  bool to_full = false, to_sharded = false;
  std::optional<int64_t> dp_size;
  int num_workers = 1;  // Of no account.
  bool dry_run = false;
  bool force = false;  // Also an unfinished tag.
};

// No daemon. SIGINT and SIGTERM end it with nothing left behind: ABORTED, reason INTERRUPTED.
absl::StatusOr<ExitCode> ConvertNxdZero(const Context& context, const ConvertArguments& arguments);

}  // namespace ckptd::ctl
#endif  // CKPTD_CLIENT_CKPTCTL_CONVERT_H_
