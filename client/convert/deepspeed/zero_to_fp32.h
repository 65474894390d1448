// Converts a DeepSpeed ZeRO checkpoint to files of the whole model's weights, as DeepSpeed's zero_to_fp32.py
// does. See docs/convert.md.
//
//   1. Read the names and all pickles, and check all of it (ds_weights.h). Nothing is written before.
//   2. Stream the weights into the new files (stream_files.h), and publish these in one step (output_tree.h).
#ifndef CKPTD_CLIENT_CONVERT_DEEPSPEED_ZERO_TO_FP32_H_
#define CKPTD_CLIENT_CONVERT_DEEPSPEED_ZERO_TO_FP32_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/convert/files/output_tree.h"
#include "client/convert/files/weight_files.h"
#include "storage/fs/file_system.h"

namespace ckptd {

struct ZeroToFp32Options {
  bool exclude_frozen = false;
  bool dry_run = false;  // Do only step 1.
  WeightFilesOptions files = {};
  OutputOptions output = {};
};

struct ZeroToFp32Report {
  int stage = 0;
  int ranks = 0;
  int64_t weights = 0;
  OutputSize size;
  std::vector<std::string> names;    // Of the files.
  std::vector<std::string> removed;  // Leftovers of killed conversions that were removed.
};

// Converts the tag whose directory is `in` to `name` in `parent`, which must be missing or an empty
// directory. The caller has checked that it is not inside `in`. Calls `progress` with the bytes to write and
// those written so far; if it returns false, the conversion stops with ABORTED, reason INTERRUPTED. Blocks.
// After an error it leaves nothing behind, except if the error is INDETERMINATE (staging.h).
absl::StatusOr<ZeroToFp32Report> ConvertZeroToFp32(
    FileSystem& fs, Handle in, Handle parent, const std::string& name, const ZeroToFp32Options& options,
    const std::function<bool(int64_t total, int64_t bytes)>& progress);

}  // namespace ckptd
#endif  // CKPTD_CLIENT_CONVERT_DEEPSPEED_ZERO_TO_FP32_H_
