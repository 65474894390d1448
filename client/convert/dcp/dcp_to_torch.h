// Converts a distributed checkpoint (DCP) to one file of torch.save, as torch's format_utils.dcp_to_torch_save does:
// the nested state dict with whole tensors. See docs/convert.md.
//
//   1. Read `.metadata` and the pickle of each chunk and value, and check all of it. Nothing is written before.
//   2. Stream the tensors' bytes into the new file (stream_files.h), and publish it in one step (staging.h).
#ifndef CKPTD_CLIENT_CONVERT_DCP_DCP_TO_TORCH_H_
#define CKPTD_CLIENT_CONVERT_DCP_DCP_TO_TORCH_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/convert/files/output_tree.h"
#include "storage/fs/file_system.h"

namespace ckptd {

struct DcpReport {
  int64_t tensors = 0;
  int64_t values = 0;  // Objects that are not tensors.
  OutputSize size;
  std::vector<std::string> names;     // Of the files.
  std::vector<std::string> left_out;  // Names of entries that the new format has no place for.
  std::vector<std::string> removed;   // Leftovers of killed conversions that were removed.
};

struct DcpToTorchOptions {
  bool dry_run = false;  // Do only step 1.
  OutputOptions output = {};
};

// Converts the checkpoint whose directory is `in` to the file `name` in `parent`, which must be missing. Calls
// `progress` with the bytes to write and those written so far; if it returns false, the conversion stops with ABORTED,
// reason INTERRUPTED. Blocks. After an error it leaves nothing behind, except if the error is INDETERMINATE.
absl::StatusOr<DcpReport> ConvertDcpToTorch(
    FileSystem& fs, Handle in, Handle parent, const std::string& name, const DcpToTorchOptions& options,
    const std::function<bool(int64_t total, int64_t bytes)>& progress);

}  // namespace ckptd
#endif  // CKPTD_CLIENT_CONVERT_DCP_DCP_TO_TORCH_H_
