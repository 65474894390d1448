// Converts a tag of DeepSpeed's ZeRO to a universal checkpoint, as DeepSpeed's ds_to_universal.py does: one
// folder for each parameter, which any number of ranks loads. See docs/convert.md.
//
//   zero/<parameter>/fp32.pt, exp_avg.pt, …   {"param": the whole tensor, …}; only the flat tensor at stage 3
//   zero/<parameter>/step.pt                  at stages 1 and 2
//   zero/optimizer_state.pt                   what the optimizer has once
//   *_model_states.pt                         as they were, or with a description of AutoEP's experts
//   ../latest_universal                       the name of the output's directory
//
// There is no temporary copy of the state: the bytes go straight to their places.
#ifndef CKPTD_CLIENT_CONVERT_DEEPSPEED_DS_UNIVERSAL_H_
#define CKPTD_CLIENT_CONVERT_DEEPSPEED_DS_UNIVERSAL_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/convert/files/output_tree.h"
#include "storage/fs/file_system.h"

namespace ckptd {

struct DsUniversalOptions {
  bool inject_missing_state = false;  // Do without universal_checkpoint_info.
  bool strict = true;                 // Refuse patterns that no parameter matches.
  bool dry_run = false;               // Check everything, and write nothing.
  OutputOptions output = {};
  int64_t plan_bytes = int64_t{48} << 20;  // Plans of about this many bytes, in memory, are made at once.
};

struct DsUniversalReport {
  int stage = 0;
  int pp = 1, tp = 1, dp = 1;
  int64_t params = 0;
  OutputSize size;
  std::vector<std::string> unused;   // Patterns that no parameter matches.
  std::vector<std::string> removed;  // Leftovers of killed conversions that were removed.
};

// Converts the tag whose directory is `in` to `name` in `parent`; otherwise as ConvertZeroToFp32. When the
// output is in place, it writes `latest_universal` beside it.
absl::StatusOr<DsUniversalReport> ConvertDsToUniversal(
    FileSystem& fs, Handle in, Handle parent, const std::string& name, const DsUniversalOptions& options,
    const std::function<bool(int64_t total, int64_t bytes)>& progress);

}  // namespace ckptd
#endif  // CKPTD_CLIENT_CONVERT_DEEPSPEED_DS_UNIVERSAL_H_
