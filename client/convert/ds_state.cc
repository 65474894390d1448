#include "client/convert/ds_state.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/convert/convert_error.h"
#include "client/convert/open_archive.h"
#include "client/convert/value_text.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

using torch::Dict;
using torch::Value;
using torch::ValueRef;

constexpr char kOptimizer[] = "optimizer_state_dict";
constexpr int64_t kMaxElements = int64_t{1} << 58;  // Of a parameter.

absl::Status Unexpected(std::string_view where, const Value* value, std::string_view expected) {
  return CannotConvert(absl::StrCat(std::string(where), " is ",
                                    value != nullptr ? ValueText(*value) : "missing", "; expected ",
                                    std::string(expected)));
}

template <typename T>
absl::StatusOr<const T*> As(const ValueRef& value, std::string_view where, std::string_view expected) {
  const T* result = value != nullptr ? value->As<T>() : nullptr;
  if (result == nullptr) return Unexpected(where, value.get(), expected);
  return result;
}

// A dict, or null for None or nothing.
absl::StatusOr<const Dict*> OptionalDict(const ValueRef& value, std::string_view where) {
  if (value == nullptr || value->As<torch::None>() != nullptr) return nullptr;
  return As<Dict>(value, where, "a dict");
}

absl::StatusOr<const std::vector<ValueRef>*> Items(const ValueRef& value, std::string_view where) {
  if (value != nullptr) {
    if (const auto* list = value->As<torch::List>()) return &list->items;
    if (const auto* tuple = value->As<torch::Tuple>()) return &tuple->items;
  }
  return Unexpected(where, value.get(), "a list");
}

absl::StatusOr<int64_t> Integer(const ValueRef& value, std::string_view where) {
  CKPTD_ASSIGN_OR_RETURN(const auto* number, As<int64_t>(value, where, "a number"));
  return *number;
}

// A number, or a member of ZeroStageEnum, written by its value or, by Python 3.11, by its name.
absl::StatusOr<int64_t> Stage(const ValueRef& value) {
  static constexpr std::string_view kNames[] = {"disabled", "optimizer_states", "gradients", "weights"};
  const auto* member = value->As<torch::Object>();
  if (member == nullptr) return Integer(value, "zero_stage");
  const std::vector<ValueRef>& arguments = member->arguments->As<torch::Tuple>()->items;
  if (arguments.size() == 1) return Integer(arguments.front(), "zero_stage");
  const auto* name = arguments.size() == 2 ? arguments[1]->As<std::string>() : nullptr;
  const auto* found =
      name != nullptr ? std::find(std::begin(kNames), std::end(kNames), *name) : std::end(kNames);
  if (found == std::end(kNames)) return Unexpected("zero_stage", value.get(), "a stage");
  return found - std::begin(kNames);
}

// Numbers of a list, none of them negative.
absl::StatusOr<std::vector<int64_t>> Sizes(const ValueRef& value, std::string_view where) {
  std::vector<int64_t> sizes;
  if (const auto* size = value != nullptr ? value->As<torch::Size>() : nullptr) {
    sizes = size->dimensions;
  } else {
    CKPTD_ASSIGN_OR_RETURN(const std::vector<ValueRef>* items, Items(value, where));
    for (const ValueRef& item : *items) {
      CKPTD_ASSIGN_OR_RETURN(const int64_t one, Integer(item, where));
      sizes.push_back(one);
    }
  }
  if (std::any_of(sizes.begin(), sizes.end(), [](int64_t one) { return one < 0; }))
    return CannotConvert(absl::StrCat(std::string(where), " has a negative number"));
  return sizes;
}

absl::StatusOr<NamedShape> ParseShape(const std::string& name, const ValueRef& value) {
  NamedShape named = {.name = name, .shape = {}, .elements = 1};
  CKPTD_ASSIGN_OR_RETURN(named.shape, Sizes(value, absl::StrCat("the shape of ", name)));
  for (const int64_t size : named.shape) {
    if (__builtin_mul_overflow(named.elements, size, &named.elements) || named.elements > kMaxElements)
      return CannotConvert(absl::StrCat("the shape of ", name, " is impossible: ", ShapeText(named.shape)));
  }
  return named;
}

absl::StatusOr<std::vector<NamedShape>> ParseShapes(const Dict& dict, std::string_view where) {
  std::vector<NamedShape> shapes;
  for (const auto& [key, value] : dict.entries()) {
    CKPTD_ASSIGN_OR_RETURN(const auto* name, As<std::string>(key, where, "names"));
    CKPTD_ASSIGN_OR_RETURN(NamedShape shape, ParseShape(*name, value));
    shapes.push_back(std::move(shape));
  }
  return shapes;
}

absl::StatusOr<FlatTensor> Flat(const ValueRef& value, int input, std::string_view where) {
  CKPTD_ASSIGN_OR_RETURN(const auto* tensor, As<torch::Tensor>(value, where, "a tensor"));
  if (!tensor->is_contiguous() || tensor->math_bits != nullptr)
    return CannotConvert(absl::StrCat(std::string(where), " is ", ValueText(*value), ", not contiguous"));
  return FlatTensor{input, tensor->file_offset(), tensor->elements(), tensor->dtype};
}

absl::Status ReadShared(const ValueRef& value, DsModelState& state) {
  CKPTD_ASSIGN_OR_RETURN(const Dict* shared, OptionalDict(value, "shared_params"));
  if (shared == nullptr) return absl::OkStatus();
  for (const auto& [key, source] : shared->entries()) {
    CKPTD_ASSIGN_OR_RETURN(const auto* name, As<std::string>(key, "shared_params", "names"));
    CKPTD_ASSIGN_OR_RETURN(const auto* of, As<std::string>(source, "shared_params", "names"));
    state.shared.emplace_back(*name, *of);
  }
  return absl::OkStatus();
}

absl::Status ReadModel(const Dict& root, DsModelState& state) {
  if (root.Find("buffer_names") == nullptr)
    return CannotConvert("it has no buffer_names: it is not a model's state that DeepSpeed saves with ZeRO");
  CKPTD_ASSIGN_OR_RETURN(const std::vector<ValueRef>* buffers,
                         Items(root.Find("buffer_names"), "buffer_names"));
  for (const ValueRef& item : *buffers) {
    CKPTD_ASSIGN_OR_RETURN(const auto* name, As<std::string>(item, "buffer_names", "names"));
    state.buffers.insert(*name);
  }
  CKPTD_ASSIGN_OR_RETURN(state.module, OptionalDict(root.Find("module"), "module"));
  CKPTD_ASSIGN_OR_RETURN(const std::vector<ValueRef>* groups,
                         Items(root.Find("param_shapes"), "param_shapes"));
  for (const ValueRef& group : *groups) {
    CKPTD_ASSIGN_OR_RETURN(const Dict* dict, As<Dict>(group, "param_shapes", "dicts"));
    CKPTD_ASSIGN_OR_RETURN(std::vector<NamedShape> shapes, ParseShapes(*dict, "param_shapes"));
    state.shapes.push_back(std::move(shapes));
  }
  CKPTD_RETURN_IF_ERROR(ReadShared(root.Find("shared_params"), state));
  CKPTD_ASSIGN_OR_RETURN(const Dict* frozen,
                         OptionalDict(root.Find("frozen_param_shapes"), "frozen_param_shapes"));
  if (frozen != nullptr) {
    CKPTD_ASSIGN_OR_RETURN(state.frozen, ParseShapes(*frozen, "frozen_param_shapes"));
  }
  CKPTD_ASSIGN_OR_RETURN(state.frozen_fragments,
                         OptionalDict(root.Find("frozen_param_fragments"), "frozen_param_fragments"));
  return absl::OkStatus();
}

absl::Status ReadOptim(const Dict& zero, int input, DsOptimState& state) {
  if (zero.Find("zero_stage") == nullptr)
    return CannotConvert(
        "it has no zero_stage: DeepSpeed's BF16_Optimizer without ZeRO has saved it, or another optimizer");
  CKPTD_ASSIGN_OR_RETURN(const int64_t stage, Stage(zero.Find("zero_stage")));
  if (stage < 1 || stage > 3)
    return CannotConvert(absl::StrCat("zero_stage is ", stage, "; known are 1 to 3"));
  state.stage = static_cast<int>(stage);

  const ValueRef count = zero.Find("partition_count");
  if (count != nullptr && count->As<int64_t>() != nullptr) {
    state.partition_counts = {*count->As<int64_t>()};
  } else {
    CKPTD_ASSIGN_OR_RETURN(state.partition_counts, Sizes(count, "partition_count"));
  }

  const char* key = stage == 3 ? "fp32_flat_groups" : "single_partition_of_fp32_groups";
  CKPTD_ASSIGN_OR_RETURN(const std::vector<ValueRef>* groups, Items(zero.Find(key), key));
  for (const ValueRef& group : *groups) {
    CKPTD_ASSIGN_OR_RETURN(const FlatTensor flat, Flat(group, input, key));
    state.fp32.push_back(flat);
  }

  const ValueRef paddings = zero.Find("param_alignment_paddings");
  if (paddings == nullptr || paddings->As<torch::None>() != nullptr) return absl::OkStatus();
  CKPTD_ASSIGN_OR_RETURN(const std::vector<ValueRef>* by_group, Items(paddings, "param_alignment_paddings"));
  for (const ValueRef& group : *by_group) {
    CKPTD_ASSIGN_OR_RETURN(std::vector<int64_t> sizes, Sizes(group, "param_alignment_paddings"));
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
  if (root == nullptr) return OfFile(Unexpected("it", state.root.get(), "a dict"), path);
  CKPTD_RETURN_IF_ERROR(OfFile(ReadModel(*root, state), path));
  return state;
}

absl::StatusOr<DsOptimState> LoadDsOptimState(FileSystem& fs, Handle tag, const std::string& path,
                                              int input) {
  CKPTD_ASSIGN_OR_RETURN(const torch::Archive archive, OpenArchiveAt(fs, tag, path));
  const auto* root = archive.root->As<Dict>();
  const ValueRef zero = root != nullptr ? root->Find(kOptimizer) : nullptr;
  const auto* dict = zero != nullptr ? zero->As<Dict>() : nullptr;
  if (dict == nullptr) return OfFile(Unexpected(kOptimizer, zero.get(), "a dict"), path);
  DsOptimState state;
  CKPTD_RETURN_IF_ERROR(OfFile(ReadOptim(*dict, input, state), path));
  return state;
}

}  // namespace ckptd
