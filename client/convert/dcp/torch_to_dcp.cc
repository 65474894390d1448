#include "client/convert/dcp/torch_to_dcp.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/convert/dcp/dcp_metadata.h"
#include "client/convert/dcp/flatten_state.h"
#include "client/convert/dcp/join_chunks.h"
#include "client/convert/files/convert_error.h"
#include "client/convert/files/open_archive.h"
#include "client/convert/files/plan_archive.h"
#include "client/convert/files/staging.h"
#include "client/convert/files/stream_files.h"
#include "client/formats/data_type.h"
#include "client/formats/torch/value.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

constexpr char kDataFile[] = "__0_0.distcp";  // Of the only rank, from its only thread.
constexpr char kArchiveName[] = "archive";    // As torch names it in a file with several archives.

// Plans the data file and collects what `.metadata` says of it.
class Planner {
 public:
  explicit Planner(const torch::Archive& archive) {
    for (const torch::StorageRef& storage : archive.storages)
      stored_[storage.get()] = {{.input = 0, .from = storage->file_offset, .size = storage->bytes}};
  }

  // Values first, as torch writes them.
  absl::Status Run(const FlatState& state) {
    entries_.resize(state.entries.size());
    for (const bool tensors : {false, true}) {
      for (size_t i = 0; i < state.entries.size(); ++i) {
        const FlatEntry& from = state.entries[i];
        if ((from.value->As<torch::Tensor>() != nullptr) != tensors) continue;
        const absl::Status added = Add(from, entries_[i]);
        if (!added.ok()) return Annotate(added, from.name);
      }
    }
    return absl::OkStatus();
  }

  const std::vector<DcpEntry>& entries() const { return entries_; }
  std::vector<std::string> left_out;
  PlannedFile file = {.path = kDataFile, .size = 0, .literals = "", .pieces = {}};

 private:
  absl::Status Add(const FlatEntry& from, DcpEntry& entry) {
    entry.name = from.name;
    entry.path = from.path;
    const int64_t offset = file.size;
    const torch::Tensor* tensor = from.value->As<torch::Tensor>();
    if (tensor == nullptr) {
      CKPTD_RETURN_IF_ERROR(AppendArchive(*from.value, stored_, kArchiveName, file));
      entry.value = {kDataFile, offset, file.size - offset};
      return absl::OkStatus();
    }
    CKPTD_RETURN_IF_ERROR(AppendTensor(*tensor, from.name));
    entry.is_tensor = true;
    entry.dtype = tensor->dtype;
    entry.requires_grad = tensor->requires_grad;
    entry.shape = tensor->shape;
    entry.chunks.push_back({.offsets = std::vector<int64_t>(tensor->shape.size(), 0),
                            .sizes = tensor->shape,
                            .place = {kDataFile, offset, file.size - offset}});
    return absl::OkStatus();
  }

  // Appends the tensor with a storage of its own, contiguous: as torch does with a view.
  absl::Status AppendTensor(const torch::Tensor& tensor, const std::string& name) {
    if (tensor.math_bits != nullptr) {
      return CannotConvert("it is a view that torch computes when it reads it (conjugated or negated)");
    }
    if (tensor.attributes != nullptr) left_out.push_back(absl::StrCat(name, " (attributes of the tensor)"));
    const ChunkSource all = {.offsets = std::vector<int64_t>(tensor.shape.size(), 0),
                             .sizes = tensor.shape,
                             .stride = tensor.stride,
                             .input = 0,
                             .from = tensor.file_offset()};
    const torch::ValueRef copy = torch::Make(torch::NewTensor(tensor.dtype, tensor.shape));
    Contents contents;
    CKPTD_ASSIGN_OR_RETURN(contents[copy->As<torch::Tensor>()->storage.get()],
                           JoinChunks(tensor.shape, InfoOf(tensor.dtype).item_bytes, {all}));
    return AppendArchive(*copy, contents, kArchiveName, file);
  }

  Contents stored_;  // Of the storages in the input.
  std::vector<DcpEntry> entries_;
};

}  // namespace

absl::StatusOr<DcpReport> ConvertTorchToDcp(
    FileSystem& fs, Handle in, const std::string& file, Handle parent, const std::string& name,
    const TorchToDcpOptions& options, const std::function<bool(int64_t total, int64_t bytes)>& progress) {
  CKPTD_RETURN_IF_ERROR(CheckFree(fs, parent, name));
  CKPTD_ASSIGN_OR_RETURN(const torch::Archive archive, OpenArchiveAt(fs, in, file));
  CKPTD_ASSIGN_OR_RETURN(FlatState state, FlattenState(archive.root));
  Planner planner(archive);
  CKPTD_RETURN_IF_ERROR(planner.Run(state));
  CKPTD_ASSIGN_OR_RETURN(std::string metadata, WriteDcpMetadata(planner.entries()));

  DcpReport report;
  for (const DcpEntry& entry : planner.entries()) ++(entry.is_tensor ? report.tensors : report.values);
  report.left_out = std::move(state.left_out);
  report.left_out.insert(report.left_out.end(), planner.left_out.begin(), planner.left_out.end());
  const auto metadata_bytes = static_cast<int64_t>(metadata.size());
  const std::vector<PlannedFile> files = {
      std::move(planner.file),
      {.path = kDcpMetadata,
       .size = metadata_bytes,
       .literals = std::move(metadata),
       .pieces = {{.offset = 0, .size = metadata_bytes, .input = Piece::kLiteral, .from = 0}}}};
  report.size = SizeOf(files);
  for (const PlannedFile& planned : files) report.names.push_back(planned.path);
  if (options.dry_run) return report;
  CKPTD_RETURN_IF_ERROR(
      WriteOutput(fs, in, {file}, parent, name, files, options.output, progress, &report.removed));
  return report;
}

}  // namespace ckptd
