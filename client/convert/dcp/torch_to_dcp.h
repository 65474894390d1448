// Converts a file of torch.save to a distributed checkpoint (DCP), as torch's format_utils.torch_save_to_dcp does:
// `.metadata` and `__0_0.distcp`, which any number of ranks loads. See docs/convert.md. The steps are those of
// dcp_to_torch.h.
#ifndef CKPTD_CLIENT_CONVERT_DCP_TORCH_TO_DCP_H_
#define CKPTD_CLIENT_CONVERT_DCP_TORCH_TO_DCP_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "client/convert/dcp/dcp_to_torch.h"
#include "client/convert/files/output_tree.h"
#include "storage/fs/file_system.h"

namespace ckptd {

struct TorchToDcpOptions {
  bool dry_run = false;
  OutputOptions output = {};
};

// Converts `file` in the directory `in` to the directory `name` in `parent`, which must be missing or empty. Empty
// dicts, and attributes that a program has set on tensors, are in DcpReport::left_out, as torch leaves them out. Errors
// as of ConvertDcpToTorch.
absl::StatusOr<DcpReport> ConvertTorchToDcp(
    FileSystem& fs, Handle in, const std::string& file, Handle parent, const std::string& name,
    const TorchToDcpOptions& options, const std::function<bool(int64_t total, int64_t bytes)>& progress);

}  // namespace ckptd
#endif  // CKPTD_CLIENT_CONVERT_DCP_TORCH_TO_DCP_H_
