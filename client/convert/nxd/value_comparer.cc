#include "client/convert/nxd/value_comparer.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <set>
#include <typeindex>
#include <typeinfo>

#include "absl/strings/str_cat.h"
#include "client/convert/files/value_text.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

constexpr int64_t kReadAtOnce = 1 << 20;

std::type_index TypeOf(const torch::Value& value) {
  return value.Visit([](const auto& held) { return std::type_index(typeid(held)); });
}

class Comparison {
 public:
  Comparison(TensorReader& left, TensorReader& right) : left_reader_(left), right_reader_(right) {}

  absl::StatusOr<std::string> Values(const torch::Value& a, const torch::Value& b, const std::string& where) {
    if (&a == &b) return "";
    if (TypeOf(a) != TypeOf(b)) return Differ(a, b, where);
    if (const auto* dict = a.As<torch::Dict>()) return Dicts(*dict, *b.As<torch::Dict>(), where);
    if (const auto* list = a.As<torch::List>()) return Items(list->items, b.As<torch::List>()->items, where);
    if (const auto* tuple = a.As<torch::Tuple>())
      return Items(tuple->items, b.As<torch::Tuple>()->items, where);
    if (const auto* object = a.As<torch::Object>()) return Objects(*object, *b.As<torch::Object>(), where);
    if (const auto* tensor = a.As<torch::Tensor>()) {
      CKPTD_ASSIGN_OR_RETURN(const bool same, SameTensors(*tensor, *b.As<torch::Tensor>()));
      if (same) return "";
      return absl::StrCat(where, " is ", ValueText(a), " and ", ValueText(b), ", with different bytes");
    }
    return SamePlain(a, b) ? absl::StatusOr<std::string>("") : Differ(a, b, where);
  }

 private:
  static std::string Differ(const torch::Value& a, const torch::Value& b, const std::string& where) {
    return absl::StrCat(where, " is ", ValueText(a), " and ", ValueText(b));
  }

  absl::StatusOr<std::string> Dicts(const torch::Dict& a, const torch::Dict& b, const std::string& where) {
    for (const auto& [key, value] : b.entries()) {
      if (a.Find(*key) == nullptr) return absl::StrCat(where, KeyText(*key), " is missing on one side");
    }
    for (const auto& [key, value] : a.entries()) {
      const torch::ValueRef other = b.Find(*key);
      if (other == nullptr) return absl::StrCat(where, KeyText(*key), " is missing on one side");
      CKPTD_ASSIGN_OR_RETURN(std::string difference, Values(*value, *other, where + KeyText(*key)));
      if (!difference.empty()) return difference;
    }
    return "";
  }

  absl::StatusOr<std::string> Items(const std::vector<torch::ValueRef>& a,
                                    const std::vector<torch::ValueRef>& b, const std::string& where) {
    if (a.size() != b.size()) return absl::StrCat(where, " has ", a.size(), " and ", b.size(), " items");
    for (size_t i = 0; i < a.size(); ++i) {
      CKPTD_ASSIGN_OR_RETURN(std::string difference, Values(*a[i], *b[i], absl::StrCat(where, "[", i, "]")));
      if (!difference.empty()) return difference;
    }
    return "";
  }

  absl::StatusOr<std::string> Objects(const torch::Object& a, const torch::Object& b,
                                      const std::string& where) {
    const bool same = a.callable.module == b.callable.module && a.callable.name == b.callable.name &&
                      a.by_new == b.by_new && (a.arguments == nullptr) == (b.arguments == nullptr) &&
                      (a.state == nullptr) == (b.state == nullptr) && a.entries.size() == b.entries.size();
    if (!same) return absl::StrCat(where, " was constructed in two different ways");
    if (a.arguments != nullptr) {
      CKPTD_ASSIGN_OR_RETURN(std::string difference, Values(*a.arguments, *b.arguments, where));
      if (!difference.empty()) return difference;
    }
    if (a.state != nullptr) {
      CKPTD_ASSIGN_OR_RETURN(std::string difference, Values(*a.state, *b.state, where));
      if (!difference.empty()) return difference;
    }
    for (size_t i = 0; i < a.entries.size(); ++i) {
      for (const auto& [left, right] : {std::pair(a.entries[i].first, b.entries[i].first),
                                        std::pair(a.entries[i].second, b.entries[i].second)}) {
        CKPTD_ASSIGN_OR_RETURN(std::string difference, Values(*left, *right, where));
        if (!difference.empty()) return difference;
      }
    }
    return Items(a.items, b.items, where);
  }

  absl::StatusOr<bool> SameTensors(const torch::Tensor& a, const torch::Tensor& b) {
    if (a.dtype != b.dtype || a.shape != b.shape || !a.is_contiguous() || !b.is_contiguous()) return false;
    const int64_t size = a.elements() * InfoOf(a.dtype).item_bytes;
    for (int64_t at = 0; at < size; at += kReadAtOnce) {
      const auto now = static_cast<size_t>(std::min(kReadAtOnce, size - at));
      left_.resize(now);
      right_.resize(now);
      CKPTD_RETURN_IF_ERROR(left_reader_.Read(a, at, left_));
      CKPTD_RETURN_IF_ERROR(right_reader_.Read(b, at, right_));
      if (std::memcmp(left_.data(), right_.data(), now) != 0) return false;
    }
    return true;
  }

  static bool SamePlain(const torch::Value& a, const torch::Value& b) {
    if (const auto* x = a.As<double>()) {
      return std::bit_cast<uint64_t>(*x) == std::bit_cast<uint64_t>(*b.As<double>());
    }
    if (const auto* x = a.As<torch::Set>()) return SameSets(*x, *b.As<torch::Set>());
    // Any other value can be the key of a dict, and then its key identity decides. Storages cannot stand
    // alone.
    const std::optional<std::string> left = torch::KeyIdentity(a);
    return left.has_value() && left == torch::KeyIdentity(b);
  }

  // Compares in any order.
  static bool SameSets(const torch::Set& a, const torch::Set& b) {
    std::multiset<std::string> left, right;
    for (const torch::ValueRef& item : a.items) left.insert(torch::KeyIdentity(*item).value_or(""));
    for (const torch::ValueRef& item : b.items) right.insert(torch::KeyIdentity(*item).value_or(""));
    return left == right && a.frozen == b.frozen;
  }

  TensorReader& left_reader_;
  TensorReader& right_reader_;
  std::vector<std::byte> left_, right_;
};

}  // namespace

absl::StatusOr<std::string> ValueComparer::Difference(const torch::Value& left, const torch::Value& right,
                                                      const std::string& where) {
  return Comparison(left_reader_, right_reader_).Values(left, right, where);
}

}  // namespace ckptd
