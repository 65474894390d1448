#include "client/convert/deepspeed/zero_to_fp32.h"

#include "client/convert/deepspeed/ds_weights.h"
#include "client/convert/files/staging.h"
#include "storage/base/status_macros.h"

namespace ckptd {

absl::StatusOr<ZeroToFp32Report> ConvertZeroToFp32(
    FileSystem& fs, Handle in, Handle parent, const std::string& name, const ZeroToFp32Options& options,
    const std::function<bool(int64_t total, int64_t bytes)>& progress) {
  CKPTD_RETURN_IF_ERROR(CheckFree(fs, parent, name));
  CKPTD_ASSIGN_OR_RETURN(const DsWeights gathered, GatherDsWeights(fs, in, options.exclude_frozen));
  CKPTD_ASSIGN_OR_RETURN(const std::vector<PlannedFile> files,
                         PlanWeightFiles(gathered.weights, options.files));
  ZeroToFp32Report report;
  report.stage = gathered.stage;
  report.ranks = gathered.ranks;
  report.weights = static_cast<int64_t>(gathered.weights.size());
  report.size = SizeOf(files);
  for (const PlannedFile& file : files) report.names.push_back(file.path);
  if (options.dry_run) return report;
  CKPTD_RETURN_IF_ERROR(
      WriteOutput(fs, in, gathered.inputs, parent, name, files, options.output, progress, &report.removed));
  return report;
}

}  // namespace ckptd
