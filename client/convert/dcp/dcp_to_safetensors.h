// Converts the tensors of a distributed checkpoint (DCP) to files of safetensors, as HuggingFace's libraries name,
// shard and read them (weight_files.h). See docs/convert.md. The steps are those of dcp_to_torch.h.
#ifndef CKPTD_CLIENT_CONVERT_DCP_DCP_TO_SAFETENSORS_H_
#define CKPTD_CLIENT_CONVERT_DCP_DCP_TO_SAFETENSORS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "client/convert/dcp/dcp_to_torch.h"
#include "client/convert/files/output_tree.h"
#include "client/convert/files/weight_files.h"
#include "storage/fs/file_system.h"

namespace ckptd {

struct DcpToSafetensorsOptions {
  std::string prefix;  // Take only the entries whose names begin so, and remove it from their names.
  bool dry_run = false;
  WeightFilesOptions files = {.safetensors = true, .max_shard_bytes = std::nullopt, .dtype = std::nullopt};
  OutputOptions output = {};
};

// Converts to the directory `name` in `parent`, which must be missing or empty. Values that are not tensors are in
// DcpReport::left_out. CANNOT_CONVERT if no tensor has the prefix. Otherwise as ConvertDcpToTorch.
absl::StatusOr<DcpReport> ConvertDcpToSafetensors(
    FileSystem& fs, Handle in, Handle parent, const std::string& name, const DcpToSafetensorsOptions& options,
    const std::function<bool(int64_t total, int64_t bytes)>& progress);

}  // namespace ckptd
#endif  // CKPTD_CLIENT_CONVERT_DCP_DCP_TO_SAFETENSORS_H_
