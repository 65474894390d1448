#include "client/convert/deepspeed/state/ds_state.h"

#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/convert/deepspeed/state/ds_value.h"
#include "client/convert/files/convert_error.h"
#include "client/convert/files/open_archive.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

using torch::Dict;
using torch::ValueRef;

constexpr char kOptimizer[] = "optimizer_state_dict";

absl::Status ReadShared(const ValueRef& value, DsModelState& state) {
  CKPTD_ASSIGN_OR_RETURN(const Dict* shared, ds::OptionalDict(value, "shared_params"));
  if (shared == nullptr) return absl::OkStatus();
  for (const auto& [key, source] : shared->entries()) {
    CKPTD_ASSIGN_OR_RETURN(const auto* name, ds::As<std::string>(key, "shared_params", "names"));
    CKPTD_ASSIGN_OR_RETURN(const auto* of, ds::As<std::string>(source, "shared_params", "names"));
    state.shared.emplace_back(*name, *of);
  }
  return absl::OkStatus();
}

std::optional<int64_t> OptionalInteger(const ValueRef& value) {
  const auto* number = value != nullptr ? value->As<int64_t>() : nullptr;
  return number != nullptr ? std::optional(*number) : std::nullopt;
}

absl::Status ReadModel(const Dict& root, DsModelState& state) {
  state.global_steps = OptionalInteger(root.Find("global_steps"));
  state.dp_world_size = OptionalInteger(root.Find("dp_world_size"));
  state.has_buffer_names = root.Find("buffer_names") != nullptr;
  CKPTD_ASSIGN_OR_RETURN(const std::vector<std::string> buffers,
                         ds::Names(root.Find("buffer_names"), "buffer_names"));
  state.buffers.insert(buffers.begin(), buffers.end());
  CKPTD_ASSIGN_OR_RETURN(state.module, ds::OptionalDict(root.Find("module"), "module"));
  CKPTD_ASSIGN_OR_RETURN(const std::vector<ValueRef>* groups,
                         ds::Items(root.Find("param_shapes"), "param_shapes"));
  for (const ValueRef& group : *groups) {
    CKPTD_ASSIGN_OR_RETURN(const Dict* dict, ds::As<Dict>(group, "param_shapes", "dicts"));
    CKPTD_ASSIGN_OR_RETURN(std::vector<NamedShape> shapes, ds::Shapes(*dict, "param_shapes"));
    state.shapes.push_back(std::move(shapes));
  }
  CKPTD_RETURN_IF_ERROR(ReadShared(root.Find("shared_params"), state));
  CKPTD_ASSIGN_OR_RETURN(const Dict* frozen,
                         ds::OptionalDict(root.Find("frozen_param_shapes"), "frozen_param_shapes"));
  if (frozen != nullptr) {
    CKPTD_ASSIGN_OR_RETURN(state.frozen, ds::Shapes(*frozen, "frozen_param_shapes"));
  }
  CKPTD_ASSIGN_OR_RETURN(state.frozen_fragments,
                         ds::OptionalDict(root.Find("frozen_param_fragments"), "frozen_param_fragments"));
  return absl::OkStatus();
}

absl::Status ReadOptim(const Dict& zero, int input, DsOptimState& state) {
  if (zero.Find("zero_stage") == nullptr)
    return CannotConvert(
        "it has no zero_stage: DeepSpeed's BF16_Optimizer without ZeRO has saved it, or another optimizer");
  CKPTD_ASSIGN_OR_RETURN(const int64_t stage, ds::Stage(zero.Find("zero_stage")));
  if (stage < 1 || stage > 3)
    return CannotConvert(absl::StrCat("zero_stage is ", stage, "; known are 1 to 3"));
  state.stage = static_cast<int>(stage);

  const ValueRef count = zero.Find("partition_count");
  if (count != nullptr && count->As<int64_t>() != nullptr) {
    state.partition_counts = {*count->As<int64_t>()};
  } else {
    CKPTD_ASSIGN_OR_RETURN(state.partition_counts, ds::Sizes(count, "partition_count"));
  }

  const char* key = stage == 3 ? "fp32_flat_groups" : "single_partition_of_fp32_groups";
  CKPTD_ASSIGN_OR_RETURN(const std::vector<ValueRef>* groups, ds::Items(zero.Find(key), key));
  for (const ValueRef& group : *groups) {
    CKPTD_ASSIGN_OR_RETURN(const FlatTensor flat, ds::Flat(group, input, key));
    state.fp32.push_back(flat);
  }

  const ValueRef paddings = zero.Find("param_alignment_paddings");
  if (paddings == nullptr || paddings->As<torch::None>() != nullptr) return absl::OkStatus();
  CKPTD_ASSIGN_OR_RETURN(const std::vector<ValueRef>* by_group,
                         ds::Items(paddings, "param_alignment_paddings"));
  for (const ValueRef& group : *by_group) {
    CKPTD_ASSIGN_OR_RETURN(std::vector<int64_t> sizes, ds::Sizes(group, "param_alignment_paddings"));
    state.alignment_paddings.push_back(std::move(sizes));
  }
  return absl::OkStatus();
}

// The `step` of the optimizer's first group that has one; null if there is none.
ValueRef FindStep(const Dict& zero) {
  const ValueRef base =
      zero.Find(zero.Find("base_optimizer_state") != nullptr ? "base_optimizer_state" : kOptimizer);
  const auto* base_dict = base != nullptr ? base->As<Dict>() : nullptr;
  const ValueRef states = base_dict != nullptr ? base_dict->Find("state") : nullptr;
  const auto* by_group = states != nullptr ? states->As<Dict>() : nullptr;
  if (by_group == nullptr) return nullptr;
  for (const auto& [key, value] : by_group->entries()) {
    const auto* group = value->As<Dict>();
    if (group != nullptr && group->Find("step") != nullptr) return group->Find("step");
  }
  return nullptr;
}

// Errors of archive.h name the file already.
absl::Status OfFile(const absl::Status& status, const std::string& path) {
  return status.ok() ? status : Annotate(status, path);
}

}  // namespace

absl::Status OneSaveCheck::Add(const std::string& path, const DsModelState& state) {
  if (state.dp_world_size && *state.dp_world_size != data_parallel_) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "INCOMPLETE_CHECKPOINT",
                     absl::StrCat(path, " is of a job of ", *state.dp_world_size,
                                  " data-parallel ranks, and there are ", data_parallel_,
                                  " files of the optimizer's state: some are missing, or of a save of "
                                  "another job to the same tag"));
  }
  if (first_path_.empty()) {
    first_path_ = path;
    first_steps_ = state.global_steps;
  }
  if (state.global_steps == first_steps_) return absl::OkStatus();
  const auto text = [](std::optional<int64_t> steps) { return steps ? absl::StrCat(*steps) : "unknown"; };
  return CannotConvert(absl::StrCat(path, " is of global step ", text(state.global_steps), ", and ",
                                    first_path_, " of ", text(first_steps_),
                                    ": the files are not of one save"));
}

absl::StatusOr<DsModelState> LoadDsModelState(FileSystem& fs, Handle tag, const std::string& path) {
  CKPTD_ASSIGN_OR_RETURN(torch::Archive archive, OpenArchiveAt(fs, tag, path));
  DsModelState state;
  state.root = std::move(archive.root);
  const auto* root = state.root->As<Dict>();
  if (root == nullptr) return OfFile(ds::Unexpected("it", state.root.get(), "a dict"), path);
  CKPTD_RETURN_IF_ERROR(OfFile(ReadModel(*root, state), path));
  return state;
}

absl::StatusOr<DsOptimState> LoadDsOptimState(FileSystem& fs, Handle tag, const std::string& path,
                                              int input) {
  CKPTD_ASSIGN_OR_RETURN(const torch::Archive archive, OpenArchiveAt(fs, tag, path));
  const auto* root = archive.root->As<Dict>();
  const ValueRef zero = root != nullptr ? root->Find(kOptimizer) : nullptr;
  const auto* dict = zero != nullptr ? zero->As<Dict>() : nullptr;
  if (dict == nullptr) return OfFile(ds::Unexpected(kOptimizer, zero.get(), "a dict"), path);
  DsOptimState state;
  CKPTD_RETURN_IF_ERROR(OfFile(ReadOptim(*dict, input, state), path));
  if (const ValueRef step = FindStep(*dict)) {
    CKPTD_ASSIGN_OR_RETURN(state.step, ReadSmallValue(fs, tag, path, step));
  }
  return state;
}

}  // namespace ckptd
