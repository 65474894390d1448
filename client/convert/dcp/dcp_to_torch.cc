#include "client/convert/dcp/dcp_to_torch.h"

#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/convert/dcp/dcp_metadata.h"
#include "client/convert/dcp/dcp_tensors.h"
#include "client/convert/files/convert_error.h"
#include "client/convert/files/plan_archive.h"
#include "client/convert/files/staging.h"
#include "client/convert/files/stream_files.h"
#include "client/formats/torch/value.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

// A list that is longer was never saved: the index in its path is damaged.
constexpr int64_t kMaxListItems = 10'000'000;

// A container for what follows `step` in a path: a dict for a key, a list for an index.
torch::ValueRef NewContainer(const DcpStep& step) {
  if (std::holds_alternative<std::string>(step)) return torch::Make(torch::Dict());
  return torch::Make(torch::List());
}

// The place of `step` in a container: its value, or null if it has none yet. `container` gets longer if it must.
// Null if the container is of the other kind.
absl::StatusOr<torch::ValueRef> Find(torch::Value& container, const DcpStep& step, const DcpEntry& entry) {
  if (const auto* key = std::get_if<std::string>(&step)) {
    if (const torch::Dict* dict = container.As<torch::Dict>()) return dict->Find(*key);
  } else if (torch::List* list = container.As<torch::List>()) {
    const int64_t index = std::get<int64_t>(step);
    if (index < kMaxListItems) {
      // As torch does, with None for items that were not saved.
      while (static_cast<int64_t>(list->items.size()) <= index)
        list->items.push_back(torch::Make(torch::None()));
      const torch::ValueRef& item = list->items[static_cast<size_t>(index)];
      return item->As<torch::None>() != nullptr ? nullptr : item;
    }
  }
  return CannotConvert(
      absl::StrCat(entry.name, ": its path in the state dict meets the path of another entry"));
}

// Precondition: Find(container, step) was not an error.
void Put(torch::Value& container, const DcpStep& step, torch::ValueRef value) {
  if (torch::Dict* dict = container.As<torch::Dict>())
    return dict->Set(std::get<std::string>(step), std::move(value));
  container.As<torch::List>()->items[static_cast<size_t>(std::get<int64_t>(step))] = std::move(value);
}

// As set_element of torch/distributed/checkpoint/_traverse.py.
absl::Status SetElement(const torch::ValueRef& root, const DcpEntry& entry, torch::ValueRef value) {
  torch::ValueRef container = root;
  for (size_t i = 0; i + 1 < entry.path.size(); ++i) {
    CKPTD_ASSIGN_OR_RETURN(torch::ValueRef next, Find(*container, entry.path[i], entry));
    if (next == nullptr) {
      next = NewContainer(entry.path[i + 1]);
      Put(*container, entry.path[i], next);
    }
    container = std::move(next);
  }
  CKPTD_ASSIGN_OR_RETURN(const torch::ValueRef other, Find(*container, entry.path.back(), entry));
  if (other != nullptr) return CannotConvert(absl::StrCat(entry.name, ": another entry has its path"));
  Put(*container, entry.path.back(), std::move(value));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<DcpReport> ConvertDcpToTorch(
    FileSystem& fs, Handle in, Handle parent, const std::string& name, const DcpToTorchOptions& options,
    const std::function<bool(int64_t total, int64_t bytes)>& progress) {
  CKPTD_RETURN_IF_ERROR(CheckFreeFile(fs, parent, name));
  CKPTD_ASSIGN_OR_RETURN(const std::vector<DcpEntry> entries, ReadDcpMetadata(fs, in));
  DcpTensors tensors(fs, in);
  Contents contents;
  DcpReport report;
  const torch::ValueRef root = torch::Make(torch::Dict());
  for (const DcpEntry& entry : entries) {
    torch::ValueRef value;
    if (entry.is_tensor) {
      ++report.tensors;
      value = torch::Make(torch::NewTensor(entry.dtype, entry.shape));
      CKPTD_ASSIGN_OR_RETURN(contents[value->As<torch::Tensor>()->storage.get()], tensors.Locate(entry));
    } else {
      ++report.values;
      CKPTD_ASSIGN_OR_RETURN(value, tensors.ReadValue(entry, contents));
    }
    CKPTD_RETURN_IF_ERROR(SetElement(root, entry, std::move(value)));
  }
  CKPTD_ASSIGN_OR_RETURN(PlannedFile file, PlanArchive(*root, contents, name));
  report.size = {.files = 1, .bytes = file.size};
  report.names = {name};
  if (options.dry_run) return report;
  CKPTD_ASSIGN_OR_RETURN(OutputTree out,
                         OutputTree::Make(fs, parent, name, report.size, options.output, &report.removed));
  CKPTD_RETURN_IF_ERROR(out.Stream(in, tensors.inputs(), {std::move(file)},
                                   [&](int64_t bytes) { return progress(report.size.bytes, bytes); }));
  CKPTD_RETURN_IF_ERROR(out.PublishFile());
  return report;
}

}  // namespace ckptd
