// `convert zero-to-fp32` and `convert ds-to-universal`: their arguments and their output.
#ifndef CKPTD_CLIENT_CKPTCTL_CONVERT_CONVERT_DEEPSPEED_H_
#define CKPTD_CLIENT_CKPTCTL_CONVERT_CONVERT_DEEPSPEED_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "client/ckptctl/commands/commands.h"
#include "client/ckptctl/commands/exit_codes.h"

namespace ckptd::ctl {

// The flags of DeepSpeed's zero_to_fp32.py, and ours.
struct ZeroToFp32Arguments {
  std::string checkpoint_dir;
  std::string output_dir;  // Empty with `plan`.
  std::string max_shard_size = "5GB";
  std::optional<std::string> tag;
  bool safe_serialization = false;
  bool exclude_frozen_parameters = false;
  bool debug = false;  // Accepted for compatibility, and ignored.
  std::string dtype = "float32";
  bool dry_run = false;
  bool plan = false;  // Print where each weight's bytes are, as JSON, and write nothing.
};

// Works without a daemon. SIGINT and SIGTERM stop it: it removes what it wrote and returns ABORTED, reason
// INTERRUPTED.
absl::StatusOr<ExitCode> ConvertZeroToFp32(const Context& context, const ZeroToFp32Arguments& arguments);

// The flags of DeepSpeed's ds_to_universal.py, and ours.
struct DsToUniversalArguments {
  std::string input_folder, output_folder;
  int num_extract_workers = 4, num_merge_workers = 2;  // Accepted for compatibility, and ignored.
  bool keep_temp_folder = false;                       // Likewise: there is none.
  bool no_strict = false;
  bool inject_missing_state = false;
  bool dry_run = false;
};

// As ConvertZeroToFp32.
absl::StatusOr<ExitCode> ConvertDsToUniversal(const Context& context,
                                              const DsToUniversalArguments& arguments);

}  // namespace ckptd::ctl
#endif  // CKPTD_CLIENT_CKPTCTL_CONVERT_CONVERT_DEEPSPEED_H_
