#include "client/convert/ds_state.h"

#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/convert/convert_error.h"
#include "client/convert/ds_value.h"
#include "client/convert/open_archive.h"
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

absl::Status ReadModel(const Dict& root, DsModelState& state) {
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

// Errors of archive.h name the file already.
absl::Status OfFile(const absl::Status& status, const std::string& path) {
  return status.ok() ? status : Annotate(status, path);
}

}  // namespace

absl::StatusOr<DsModelState> LoadDsModelState(FileSystem& fs, Handle tag, const std::string& path) {
  CKPTD_ASSIGN_OR_RETURN(torch::Archive archive, OpenArchiveAt(fs, tag, path));
  DsModelState state = {
      .root = std::move(archive.root), .buffers = {}, .shapes = {}, .shared = {}, .frozen = {}};
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
  return state;
}

}  // namespace ckptd
