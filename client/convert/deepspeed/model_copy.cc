#include "client/convert/deepspeed/model_copy.h"

#include <utility>

#include "client/convert/deepspeed/state/ds_value.h"
#include "client/convert/files/open_archive.h"
#include "client/convert/files/plan_archive.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

using torch::Dict;

constexpr char kInfo[] = "universal_checkpoint_info";

}  // namespace

absl::StatusOr<PlannedFile> PlanModelCopy(FileSystem& fs, Handle tag, const std::string& path, int input,
                                          const ExpertInfo& info) {
  CKPTD_ASSIGN_OR_RETURN(const torch::Archive archive, OpenArchiveAt(fs, tag, path));
  CKPTD_ASSIGN_OR_RETURN(const Dict* old, ds::As<Dict>(archive.root, path, "a dict"));
  CKPTD_ASSIGN_OR_RETURN(const Dict* old_info, ds::OptionalDict(old->Find(kInfo), kInfo));
  Dict root = *old, new_info;
  if (old_info != nullptr) new_info = *old_info;
  torch::List patterns;
  patterns.items.push_back(torch::MakeString(info.pattern));
  new_info.Set("expert_parameter_patterns", torch::Make(std::move(patterns)));
  new_info.Set("ds_autoep_layers", info.layers);
  root.Set(kInfo, torch::Make(std::move(new_info)));
  Contents contents;
  for (const torch::StorageRef& storage : archive.storages)
    contents[storage.get()] = {{input, storage->file_offset, storage->bytes}};
  return PlanArchive(*torch::Make(std::move(root)), contents, path);
}

}  // namespace ckptd
