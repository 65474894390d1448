#include "client/convert/files/value_text.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/formats/data_type.h"

namespace ckptd {

std::string KeyText(const torch::Value& key) { return absl::StrCat("[", ValueText(key), "]"); }

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

std::string ValueText(const torch::Value& value) {
  if (value.As<torch::None>() != nullptr) return "None";
  if (const auto* x = value.As<bool>()) return *x ? "True" : "False";
  if (const auto* x = value.As<int64_t>()) return absl::StrCat(*x);
  if (const auto* x = value.As<double>()) return absl::StrCat(*x);
  if (const auto* x = value.As<std::string>()) return absl::StrCat("'", x->substr(0, 80), "'");
  if (const auto* x = value.As<torch::Size>())
    return absl::StrCat("torch.Size(", ShapeText(x->dimensions), ")");
  if (const auto* x = value.As<torch::Tensor>()) {
    return absl::StrCat("a tensor ", std::string(InfoOf(x->dtype).torch_name), ShapeText(x->shape));
  }
  return absl::StrCat("a ", std::string(torch::KindOf(value)));
}

}  // namespace ckptd
