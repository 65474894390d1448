// `convert dcp-to-torch`, `torch-to-dcp` and `dcp-to-safetensors`: their arguments and their output.
#ifndef CKPTD_CLIENT_CKPTCTL_CONVERT_CONVERT_DCP_H_
#define CKPTD_CLIENT_CKPTCTL_CONVERT_CONVERT_DCP_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "client/ckptctl/commands/commands.h"
#include "client/ckptctl/commands/exit_codes.h"

namespace ckptd::ctl {

struct DcpArguments {
  std::string source, destination;
  bool dry_run = false;
  // Of dcp-to-safetensors:
  std::string prefix;
  std::string max_shard_size = "5GB";
  std::optional<std::string> dtype;
};

// These work without a daemon. SIGINT and SIGTERM stop them: they remove what they wrote and return ABORTED, reason
// INTERRUPTED.
absl::StatusOr<ExitCode> ConvertDcpToTorch(const Context& context, const DcpArguments& arguments);
absl::StatusOr<ExitCode> ConvertTorchToDcp(const Context& context, const DcpArguments& arguments);
absl::StatusOr<ExitCode> ConvertDcpToSafetensors(const Context& context, const DcpArguments& arguments);

}  // namespace ckptd::ctl
#endif  // CKPTD_CLIENT_CKPTCTL_CONVERT_CONVERT_DCP_H_
