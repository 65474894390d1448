#include "client/convert/nxd/nxd_state.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/convert/files/open_archive.h"
#include "client/formats/torch/archive.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

using torch::ValueRef;

constexpr size_t kMaxNamed = 16;

class Loader {
 public:
  Loader(FileSystem& fs, Handle tag, NxdStates& states) : fs_(fs), tag_(tag), states_(states) {}

  absl::StatusOr<ValueRef> Rank(const std::string& file) {
    file_ = file;
    resolved_.clear();
    expert_tids_.clear();
    CKPTD_ASSIGN_OR_RETURN(ValueRef root, Open(absl::StrCat(kOptimDirectory, "/", file)));
    CKPTD_RETURN_IF_ERROR(ReadInfo());
    CKPTD_RETURN_IF_ERROR(Resolve(*root));
    return root;
  }

  // Fails if tensor files are missing, and names those of all data-parallel ranks at once.
  absl::Status CheckMissing() const {
    if (missing_.empty()) return absl::OkStatus();
    const size_t named = std::min(missing_.size(), kMaxNamed);
    return MakeError(
        absl::StatusCode::kFailedPrecondition, "INCOMPLETE_CHECKPOINT",
        absl::StrCat(
            missing_.size(), missing_.size() == 1 ? " file" : " files", " of tensors in optim/",
            missing_.size() == 1 ? " is" : " are", " missing: ",
            absl::StrJoin(missing_.begin(), missing_.begin() + static_cast<std::ptrdiff_t>(named), ", "),
            named < missing_.size() ? absl::StrCat(" and ", missing_.size() - named, " more") : "",
            "; copy them here from the nodes that have them"));
  }

 private:
  absl::StatusOr<ValueRef> Open(const std::string& path) {
    CKPTD_ASSIGN_OR_RETURN(torch::Archive archive, OpenArchiveAt(fs_, tag_, path));
    const int input = static_cast<int>(states_.inputs.size());
    states_.inputs.push_back(path);
    for (torch::StorageRef& storage : archive.storages) {
      states_.input_of[storage.get()] = input;
      states_.storages.push_back(std::move(storage));
    }
    return std::move(archive.root);
  }

  // Reads which tensors belong to experts. NxD up to 0.6 writes no .info.pt.
  absl::Status ReadInfo() {
    const std::string path = absl::StrCat(kOptimDirectory, "/", NxdInfoName(file_));
    if (absl::IsNotFound(fs_.Stat(tag_, path).status())) return absl::OkStatus();
    CKPTD_ASSIGN_OR_RETURN(const ValueRef info, Open(path));
    const auto* by_tid = info->As<torch::Dict>();
    if (by_tid == nullptr) return absl::OkStatus();
    for (const auto& [tid, entry] : by_tid->entries()) {
      const auto* number = tid->As<int64_t>();
      const auto* fields = entry->As<torch::Dict>();
      const ValueRef expert = fields != nullptr ? fields->Find("expert_model_parallel") : nullptr;
      if (number != nullptr && expert != nullptr && expert->As<bool>() != nullptr && *expert->As<bool>())
        expert_tids_.insert(*number);
    }
    return absl::OkStatus();
  }

  // Replaces references by the tensors, everywhere in the tree: where a tensor was inside a list, NxD leaves
  // a reference of another class.
  absl::Status Resolve(torch::Value& value) {
    if (!resolved_.insert(&value).second) return absl::OkStatus();
    if (const auto* reference = value.As<torch::TensorReference>()) return Fetch(reference->tid, value);
    if (const auto* reference = value.As<torch::InternalTensorReference>())
      return Fetch(reference->tid, value);
    if (auto* list = value.As<torch::List>()) return ResolveAll(list->items);
    if (auto* tuple = value.As<torch::Tuple>()) return ResolveAll(tuple->items);
    if (auto* dict = value.As<torch::Dict>()) {
      for (const auto& entry : dict->entries()) CKPTD_RETURN_IF_ERROR(Resolve(*entry.second));
    }
    return absl::OkStatus();
  }

  absl::Status ResolveAll(const std::vector<ValueRef>& items) {
    for (const ValueRef& item : items) CKPTD_RETURN_IF_ERROR(Resolve(*item));
    return absl::OkStatus();
  }

  absl::Status Fetch(int64_t tid, torch::Value& value) {
    const std::string path =
        absl::StrCat(kOptimDirectory, "/", NxdTensorsName(file_), "/", NxdTensorName(tid));
    absl::StatusOr<ValueRef> root = Open(path);
    if (absl::IsNotFound(root.status())) {
      missing_.push_back(absl::StrCat(NxdTensorsName(file_), "/", NxdTensorName(tid)));
      return absl::OkStatus();
    }
    if (!root.ok()) return root.status();
    const auto* tensor = (*root)->As<torch::Tensor>();
    if (tensor == nullptr) {
      return MakeError(absl::StatusCode::kFailedPrecondition, "CANNOT_CONVERT",
                       absl::StrCat(path, " holds a ", std::string(torch::KindOf(**root)), ", not a tensor"),
                       {{"path", path}});
    }
    if (expert_tids_.contains(tid)) states_.expert.insert(tensor->storage.get());
    value.Become(torch::Tensor(*tensor));
    return absl::OkStatus();
  }

  FileSystem& fs_;
  const Handle tag_;
  NxdStates& states_;
  std::string file_;
  std::vector<std::string> missing_;
  std::unordered_set<const torch::Value*> resolved_;
  std::unordered_set<int64_t> expert_tids_;
};

}  // namespace

absl::StatusOr<NxdStates> LoadNxdStates(FileSystem& fs, Handle tag, const NxdTag& kind, int tp, int pp) {
  NxdStates states;
  Loader loader(fs, tag, states);
  for (int dp = 0; dp < kind.dp; ++dp) {
    CKPTD_ASSIGN_OR_RETURN(ValueRef root, loader.Rank(NxdOptimName(kind.full, dp, tp, pp)));
    states.ranks.push_back(std::move(root));
  }
  CKPTD_RETURN_IF_ERROR(loader.CheckMissing());
  return states;
}

absl::Status TensorReader::Read(const torch::Tensor& tensor, int64_t offset, std::span<std::byte> into) {
  const int input = states_.input_of.at(tensor.storage.get());
  if (input != input_) {
    CKPTD_ASSIGN_OR_RETURN(
        file_, OpenScoped(fs_, tag_, states_.inputs[static_cast<size_t>(input)], OpenMode::kRead));
    input_ = input;
  }
  return ReadFully(fs_, file_.get(), tensor.file_offset() + offset, into);
}

}  // namespace ckptd
