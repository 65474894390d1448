#include "client/convert/deepspeed/state/ds_value.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/convert/files/convert_error.h"
#include "client/convert/files/value_text.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

constexpr int64_t kMaxElements = int64_t{1} << 58;  // Of a parameter.

absl::StatusOr<NamedShape> ParseShape(const std::string& name, const torch::ValueRef& value) {
  NamedShape named = {.name = name, .shape = {}, .elements = 1};
  CKPTD_ASSIGN_OR_RETURN(named.shape, ds::Sizes(value, absl::StrCat("the shape of ", name)));
  for (const int64_t size : named.shape) {
    if (__builtin_mul_overflow(named.elements, size, &named.elements) || named.elements > kMaxElements)
      return CannotConvert(absl::StrCat("the shape of ", name, " is impossible: ", ShapeText(named.shape)));
  }
  return named;
}

}  // namespace

namespace ds {

using torch::Dict;
using torch::Value;
using torch::ValueRef;

absl::Status Unexpected(std::string_view where, const Value* value, std::string_view expected) {
  return CannotConvert(absl::StrCat(std::string(where), " is ",
                                    value != nullptr ? ValueText(*value) : "missing", "; expected ",
                                    std::string(expected)));
}

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

absl::StatusOr<std::vector<NamedShape>> Shapes(const Dict& dict, std::string_view where) {
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

absl::StatusOr<std::vector<std::string>> Names(const ValueRef& value, std::string_view where) {
  std::vector<std::string> names;
  if (value == nullptr || value->As<torch::None>() != nullptr) return names;
  CKPTD_ASSIGN_OR_RETURN(const std::vector<ValueRef>* items, Items(value, where));
  for (const ValueRef& item : *items) {
    CKPTD_ASSIGN_OR_RETURN(const auto* name, As<std::string>(item, where, "strings"));
    names.push_back(*name);
  }
  return names;
}

}  // namespace ds
}  // namespace ckptd
