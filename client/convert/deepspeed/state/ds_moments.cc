#include "client/convert/deepspeed/state/ds_moments.h"

#include <algorithm>
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
constexpr char kBase[] = "base_optimizer_state";
constexpr char kWeights12[] = "single_partition_of_fp32_groups";
constexpr char kWeights3[] = "fp32_flat_groups";
constexpr char kSlices[] = "param_slice_mappings";
constexpr char kParamGroups[] = "param_groups";
constexpr char kPartitions[] = "ds_zero_partition_groups";

class Reader {
 public:
  Reader(FileSystem& fs, Handle tag, const std::string& path, int input, int dp)
      : fs_(fs), tag_(tag), path_(path), input_(input), dp_(dp) {}

  absl::Status Read(DsMoments& result) {
    CKPTD_ASSIGN_OR_RETURN(const auto* root, ds::As<Dict>(result.archive.root, "it", "a dict"));
    CKPTD_ASSIGN_OR_RETURN(const Dict* zero, ds::As<Dict>(root->Find(kOptimizer), kOptimizer, "a dict"));
    // As ds_to_universal.py: a state without zero_stage is of stage 1.
    if (zero->Find("zero_stage") != nullptr) {
      CKPTD_ASSIGN_OR_RETURN(const int64_t stage, ds::Stage(zero->Find("zero_stage")));
      result.stage = static_cast<int>(stage);
    } else {
      result.stage = 1;
    }
    return result.stage == 3 ? ReadStage3(*zero, result) : ReadStage12(*zero, result);
  }

 private:
  absl::Status ReadStage12(const Dict& zero, DsMoments& result) {
    CKPTD_ASSIGN_OR_RETURN(const Dict* base, ds::As<Dict>(zero.Find(kBase), kBase, "a dict"));
    CKPTD_RETURN_IF_ERROR(ReadGroups(zero.Find(kWeights12), kWeights12, base->Find("state"), result));
    CKPTD_RETURN_IF_ERROR(CutPaddings(zero.Find("group_paddings"), result));
    CKPTD_RETURN_IF_ERROR(ReadSlices(zero.Find(kSlices), result));
    Dict common;
    for (const auto& [key, value] : zero.entries()) {
      const auto* name = key->As<std::string>();
      if (name != nullptr && (*name == kBase || *name == kSlices || *name == kWeights12)) continue;
      CKPTD_RETURN_IF_ERROR(common.Set(key, value));
    }
    SetAll(common, "group_paddings", 0);
    SetAll(common, "partition_count", dp_);
    common.Set(kParamGroups, base->Find(kParamGroups));
    if (base->Find(kParamGroups) == nullptr) return ds::Unexpected(kParamGroups, nullptr, "a list");
    result.common = torch::Make(std::move(common));
    return absl::OkStatus();
  }

  absl::Status ReadStage3(const Dict& zero, DsMoments& result) {
    CKPTD_ASSIGN_OR_RETURN(const Dict* base, ds::As<Dict>(zero.Find(kOptimizer), kOptimizer, "a dict"));
    CKPTD_RETURN_IF_ERROR(ReadGroups(zero.Find(kWeights3), kWeights3, base->Find("state"), result));
    CKPTD_RETURN_IF_ERROR(ReadPartitions(zero.Find(kPartitions), result));
    if (base->Find(kParamGroups) == nullptr) return ds::Unexpected(kParamGroups, nullptr, "a list");
    Dict common = zero;
    common.Set(kParamGroups, base->Find(kParamGroups));
    result.common = torch::Make(std::move(common));
    return absl::OkStatus();
  }

  // Replaces every item of a list, if there is one.
  static void SetAll(Dict& dict, std::string_view key, int64_t number) {
    const ValueRef found = dict.Find(key);
    const auto* list = found != nullptr ? found->As<torch::List>() : nullptr;
    if (list == nullptr) return;
    torch::List numbers;
    numbers.items.assign(list->items.size(), torch::MakeInt(number));
    dict.Set(key, torch::Make(std::move(numbers)));
  }

  absl::Status ReadGroups(const ValueRef& weights, const char* where, const ValueRef& states,
                          DsMoments& result) {
    CKPTD_ASSIGN_OR_RETURN(const std::vector<ValueRef>* groups, ds::Items(weights, where));
    CKPTD_ASSIGN_OR_RETURN(const Dict* by_group, ds::As<Dict>(states, "the optimizer's state", "a dict"));
    for (size_t i = 0; i < groups->size(); ++i) {
      DsGroupStates& group = result.groups.emplace_back();
      CKPTD_ASSIGN_OR_RETURN(group.flats["fp32"], ds::Flat((*groups)[i], input_, where));
      const ValueRef state = by_group->Find(static_cast<int64_t>(i));
      if (state == nullptr) continue;  // The optimizer has not stepped yet.
      CKPTD_ASSIGN_OR_RETURN(const Dict* dict, ds::As<Dict>(state, "a group's state", "a dict"));
      CKPTD_RETURN_IF_ERROR(ReadStates(*dict, group));
    }
    return absl::OkStatus();
  }

  absl::Status ReadStates(const Dict& states, DsGroupStates& group) {
    for (const auto& [key, value] : states.entries()) {
      CKPTD_ASSIGN_OR_RETURN(const auto* name, ds::As<std::string>(key, "a group's state", "names"));
      if (*name == "step") {
        CKPTD_ASSIGN_OR_RETURN(group.step, ReadSmallValue(fs_, tag_, path_, value));
        continue;
      }
      if (*name == "fp32" || name->find('/') != std::string::npos)
        return CannotConvert(absl::StrCat("the optimizer has a state of the name ", *name));
      CKPTD_ASSIGN_OR_RETURN(group.flats[*name], ds::Flat(value, input_, absl::StrCat("the state ", *name)));
    }
    return absl::OkStatus();
  }

  // The optimizer's states have the padding at the end of the partition, and the weights have not.
  absl::Status CutPaddings(const ValueRef& value, DsMoments& result) {
    std::vector<int64_t> paddings(result.groups.size(), 0);
    if (value != nullptr && value->As<torch::None>() == nullptr) {
      CKPTD_ASSIGN_OR_RETURN(paddings, ds::Sizes(value, "group_paddings"));
    }
    if (paddings.size() != result.groups.size())
      return CannotConvert(absl::StrCat("there are ", result.groups.size(), " groups, and ", paddings.size(),
                                        " group_paddings"));
    for (size_t i = 0; i < paddings.size(); ++i) {
      for (auto& [name, flat] : result.groups[i].flats) {
        if (name == "fp32") continue;
        if (flat.elements < paddings[i])
          return CannotConvert(absl::StrCat("the state ", name, " of group ", i, " has ", flat.elements,
                                            " elements, and ", paddings[i], " of them are padding"));
        flat.elements -= paddings[i];
      }
    }
    return absl::OkStatus();
  }

  absl::Status ReadSlices(const ValueRef& value, DsMoments& result) {
    CKPTD_ASSIGN_OR_RETURN(const std::vector<ValueRef>* groups, ds::Items(value, kSlices));
    if (groups->size() != result.groups.size())
      return CannotConvert(absl::StrCat("there are ", result.groups.size(), " groups, and ", groups->size(),
                                        " of them in ", kSlices));
    for (size_t i = 0; i < groups->size(); ++i) {
      CKPTD_ASSIGN_OR_RETURN(const Dict* slices, ds::As<Dict>((*groups)[i], kSlices, "dicts"));
      for (const auto& [key, slice] : slices->entries()) {
        CKPTD_ASSIGN_OR_RETURN(const auto* name, ds::As<std::string>(key, kSlices, "names"));
        CKPTD_ASSIGN_OR_RETURN(Fragment fragment, ReadSlice(*name, slice));
        CKPTD_RETURN_IF_ERROR(CheckWithin(fragment, result.groups[i]));
        result.groups[i].fragments.push_back(std::move(fragment));
      }
    }
    return absl::OkStatus();
  }

  static absl::StatusOr<Fragment> ReadSlice(const std::string& name, const ValueRef& value) {
    const auto* object = value->As<torch::Object>();
    const auto* fields = object != nullptr && object->state != nullptr ? object->state->As<Dict>() : nullptr;
    if (fields == nullptr) return ds::Unexpected(kSlices, value.get(), "fragment_address");
    Fragment fragment = {.name = name};
    CKPTD_ASSIGN_OR_RETURN(fragment.start, ds::Integer(fields->Find("start"), "start"));
    CKPTD_ASSIGN_OR_RETURN(fragment.elements, ds::Integer(fields->Find("numel"), "numel"));
    return fragment;
  }

  static absl::Status CheckWithin(const Fragment& fragment, const DsGroupStates& group) {
    for (const auto& [name, flat] : group.flats) {
      if (fragment.start >= 0 && fragment.elements >= 0 && fragment.start <= flat.elements &&
          fragment.elements <= flat.elements - fragment.start)
        continue;
      return CannotConvert(absl::StrCat(kSlices, " has ", fragment.name, " at ", fragment.start, " with ",
                                        fragment.elements, " elements, and ", name, " has ", flat.elements));
    }
    return absl::OkStatus();
  }

  // Experts are partitioned over fewer ranks than the rest.
  static absl::Status ReadPartitions(const ValueRef& value, DsMoments& result) {
    if (value == nullptr || value->As<torch::None>() != nullptr) return absl::OkStatus();
    CKPTD_ASSIGN_OR_RETURN(const std::vector<ValueRef>* groups, ds::Items(value, kPartitions));
    for (size_t i = 0; i < groups->size() && i < result.groups.size(); ++i) {
      const auto* dict = (*groups)[i]->As<Dict>();
      if (dict == nullptr || dict->Find("partition_count") == nullptr) continue;
      Partition partition;
      CKPTD_ASSIGN_OR_RETURN(partition.count, ds::Integer(dict->Find("partition_count"), kPartitions));
      CKPTD_ASSIGN_OR_RETURN(partition.rank, ds::Integer(dict->Find("partition_rank"), kPartitions));
      if (partition.rank < 0 || partition.rank >= partition.count)
        return CannotConvert(
            absl::StrCat(kPartitions, " has rank ", partition.rank, " of ", partition.count));
      result.groups[i].partition = partition;
    }
    return absl::OkStatus();
  }

  FileSystem& fs_;
  const Handle tag_;
  const std::string& path_;
  const int input_;
  const int dp_;
};

}  // namespace

absl::StatusOr<DsMoments> LoadDsMoments(FileSystem& fs, Handle tag, const std::string& path, int input,
                                        int dp) {
  DsMoments result;
  CKPTD_ASSIGN_OR_RETURN(result.archive, OpenArchiveAt(fs, tag, path));
  const absl::Status read = Reader(fs, tag, path, input, dp).Read(result);
  if (!read.ok()) return Annotate(read, path);
  return result;
}

}  // namespace ckptd
