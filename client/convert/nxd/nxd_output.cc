#include "client/convert/nxd/nxd_output.h"

#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/convert/files/plan_archive.h"
#include "client/convert/nxd/nxd_tag.h"
#include "client/formats/torch/value.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

using torch::ValueRef;

absl::Status AddArchive(const torch::Value& root, const Contents& contents, const std::string& path,
                        NxdFiles& files) {
  CKPTD_ASSIGN_OR_RETURN(PlannedFile file, PlanArchive(root, contents, path));
  files.files.push_back(std::move(file));
  return absl::OkStatus();
}

// Replaces the tensors of a tree by references to files, and plans those files.
class Extractor {
 public:
  Extractor(const ZeroShard& shard, const std::string& path, NxdFiles& files)
      : shard_(shard), path_(path), files_(files) {}

  absl::Status Run() {
    files_.directories.push_back(NxdTensorsName(path_));
    CKPTD_ASSIGN_OR_RETURN(const ValueRef root, ReplaceTensors(shard_.root));
    CKPTD_RETURN_IF_ERROR(AddArchive(*root, shard_.contents, path_, files_));
    return AddArchive(*torch::Make(std::move(info_)), shard_.contents, NxdInfoName(path_), files_);
  }

 private:
  // A reference for a tensor; a copy of a dict that holds tensors, with references in their places.
  absl::StatusOr<ValueRef> ReplaceTensors(const ValueRef& value) {
    if (const auto* tensor = value->As<torch::Tensor>()) return Reference(value, *tensor);
    const auto* dict = value->As<torch::Dict>();
    if (dict == nullptr) return value;
    torch::Dict copy = *dict;
    for (size_t i = 0; i < copy.size(); ++i) {
      CKPTD_ASSIGN_OR_RETURN(ValueRef replaced, ReplaceTensors(dict->entries()[i].second));
      copy.Replace(i, std::move(replaced));
    }
    return torch::Make(std::move(copy));
  }

  absl::StatusOr<ValueRef> Reference(const ValueRef& value, const torch::Tensor& tensor) {
    const auto [known, is_new] = tids_.try_emplace(value.get(), static_cast<int64_t>(tids_.size()));
    const int64_t tid = known->second;
    if (is_new) {
      const std::string path = absl::StrCat(NxdTensorsName(path_), "/", NxdTensorName(tid));
      CKPTD_RETURN_IF_ERROR(AddArchive(*value, shard_.contents, path, files_));
      torch::Dict fields;
      fields.Set("dtype", torch::Make<DataType>(tensor.dtype));
      fields.Set("shape", torch::Make(torch::Size{tensor.shape}));
      fields.Set("expert_model_parallel", torch::Make<bool>(shard_.expert.contains(tensor.storage.get())));
      info_.Set(tid, torch::Make(std::move(fields)));
    }
    return torch::Make(torch::TensorReference{tid});
  }

  const ZeroShard& shard_;
  const std::string& path_;
  NxdFiles& files_;
  torch::Dict info_;
  std::unordered_map<const torch::Value*, int64_t> tids_;
};

}  // namespace

absl::Status PlanNxdFiles(const ZeroShard& shard, const std::string& path, bool xser, NxdFiles& files) {
  if (!xser) return AddArchive(*shard.root, shard.contents, path, files);
  return Extractor(shard, path, files).Run();
}

}  // namespace ckptd
