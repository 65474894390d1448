#include "client/convert/dcp/dcp_to_safetensors.h"

#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/convert/dcp/dcp_metadata.h"
#include "client/convert/dcp/dcp_tensors.h"
#include "client/convert/files/convert_error.h"
#include "client/convert/files/staging.h"
#include "client/convert/files/stream_files.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

constexpr size_t kMostShown = 10;

// Names the first parts of all names: what a prefix may be.
absl::Status NoTensor(const std::vector<DcpEntry>& entries, const std::string& prefix) {
  std::set<std::string> firsts;
  for (const DcpEntry& entry : entries) firsts.insert(entry.name.substr(0, entry.name.find('.') + 1));
  firsts.erase("");
  std::vector<std::string> shown(firsts.begin(), firsts.end());
  if (shown.size() > kMostShown) shown.resize(kMostShown), shown.push_back("…");
  if (prefix.empty()) return CannotConvert("the checkpoint has no tensors");
  return CannotConvert(absl::StrCat("no tensor's name begins with the prefix \"", prefix, "\"",
                                    shown.empty() ? "" : "; names begin with ", absl::StrJoin(shown, ", ")));
}

}  // namespace

absl::StatusOr<DcpReport> ConvertDcpToSafetensors(
    FileSystem& fs, Handle in, Handle parent, const std::string& name, const DcpToSafetensorsOptions& options,
    const std::function<bool(int64_t total, int64_t bytes)>& progress) {
  CKPTD_RETURN_IF_ERROR(CheckFree(fs, parent, name));
  CKPTD_ASSIGN_OR_RETURN(const std::vector<DcpEntry> entries, ReadDcpMetadata(fs, in));
  DcpTensors tensors(fs, in);
  DcpReport report;
  std::vector<Weight> weights;
  for (const DcpEntry& entry : entries) {
    if (!entry.name.starts_with(options.prefix)) continue;
    if (!entry.is_tensor) {
      report.left_out.push_back(entry.name);
      continue;
    }
    Weight& weight = weights.emplace_back();
    weight.name = entry.name.substr(options.prefix.size());
    if (weight.name.empty()) {
      return CannotConvert(absl::StrCat("the prefix \"", options.prefix, "\" is the whole name of a tensor"));
    }
    weight.dtype = entry.dtype;
    weight.shape = entry.shape;
    CKPTD_ASSIGN_OR_RETURN(weight.ranges, tensors.Locate(entry));
  }
  if (weights.empty()) return NoTensor(entries, options.prefix);
  CKPTD_ASSIGN_OR_RETURN(const std::vector<PlannedFile> files, PlanWeightFiles(weights, options.files));
  report.tensors = static_cast<int64_t>(weights.size());
  report.size = SizeOf(files);
  for (const PlannedFile& file : files) report.names.push_back(file.path);
  if (options.dry_run) return report;
  CKPTD_RETURN_IF_ERROR(
      WriteOutput(fs, in, tensors.inputs(), parent, name, files, options.output, progress, &report.removed));
  return report;
}

}  // namespace ckptd
