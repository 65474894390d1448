#include "client/convert/dcp/flatten_state.h"

#include <set>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/convert/files/convert_error.h"
#include "client/convert/files/value_text.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

// The entries of a mapping in Python's sense: also of a defaultdict, or of a Counter, which is made of a dict. Null for
// all others.
const std::vector<torch::Dict::Entry>* EntriesOf(const torch::Value& value) {
  if (const torch::Dict* dict = value.As<torch::Dict>()) return &dict->entries();
  const auto* object = value.As<torch::Object>();
  if (object == nullptr || object->callable.module != "collections") return nullptr;
  if (object->callable.name == "defaultdict") return &object->entries;
  if (object->callable.name != "Counter") return nullptr;
  const torch::Tuple* arguments = object->arguments->As<torch::Tuple>();
  return arguments->items.size() == 1 ? EntriesOf(*arguments->items[0]) : &object->entries;
}

bool IsSavedWhole(const torch::Value& value) {
  if (EntriesOf(value) != nullptr) return false;
  const torch::List* list = value.As<torch::List>();
  if (list == nullptr) return true;
  for (const torch::ValueRef& item : list->items) {
    const bool is_container = EntriesOf(*item) != nullptr || item->As<torch::List>() != nullptr;
    if (item->As<torch::Tensor>() != nullptr || (is_container && !IsSavedWhole(*item))) return false;
  }
  return true;
}

std::string NameOf(const std::vector<DcpStep>& path) {
  std::string name;
  for (const DcpStep& step : path) {
    const auto* key = std::get_if<std::string>(&step);
    absl::StrAppend(&name, name.empty() && &step == &path.front() ? "" : ".",
                    key != nullptr ? *key : absl::StrCat(std::get<int64_t>(step)));
  }
  return name;
}

class Flattener {
 public:
  absl::StatusOr<FlatState> Run(const torch::ValueRef& root) {
    if (EntriesOf(*root) == nullptr) {
      return CannotConvert(absl::StrCat("the file has ", ValueText(*root), ", and no dict of state"));
    }
    CKPTD_RETURN_IF_ERROR(Walk(root));
    return std::move(state_);
  }

 private:
  // The unpickler has bounded the depth and the number of values.
  absl::Status Walk(const torch::ValueRef& value) {
    if (const auto* entries = EntriesOf(*value)) {
      if (entries->empty()) state_.left_out.push_back(absl::StrCat(NameOf(path_), " (an empty dict)"));
      for (const auto& [key, item] : *entries) {
        CKPTD_ASSIGN_OR_RETURN(std::string text, TextOf(*key));
        path_.emplace_back(std::move(text));
        CKPTD_RETURN_IF_ERROR(Walk(item));
        path_.pop_back();
      }
      return absl::OkStatus();
    }
    if (IsSavedWhole(*value)) return Add(value);
    const std::vector<torch::ValueRef>& items = value->As<torch::List>()->items;
    for (size_t i = 0; i < items.size(); ++i) {
      path_.emplace_back(static_cast<int64_t>(i));
      CKPTD_RETURN_IF_ERROR(Walk(items[i]));
      path_.pop_back();
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> TextOf(const torch::Value& key) const {
    if (const auto* text = key.As<std::string>()) return *text;
    const bool is_plain =
        key.As<int64_t>() != nullptr || key.As<bool>() != nullptr || key.As<torch::None>() != nullptr;
    if (is_plain) return ValueText(key);
    return CannotConvert(
        absl::StrCat(NameOf(path_), " has the key ", ValueText(key),
                     "; names of a distributed checkpoint are made of str, int, bool and None"));
  }

  absl::Status Add(const torch::ValueRef& value) {
    std::string name = NameOf(path_);
    if (!names_.insert(name).second) {
      return CannotConvert(absl::StrCat("two entries of the state dict get the name ", name,
                                        ", since a distributed checkpoint joins keys by dots"));
    }
    state_.entries.push_back({std::move(name), path_, value});
    return absl::OkStatus();
  }

  std::vector<DcpStep> path_;
  std::set<std::string> names_;
  FlatState state_;
};

}  // namespace

absl::StatusOr<FlatState> FlattenState(const torch::ValueRef& root) { return Flattener().Run(root); }

}  // namespace ckptd
