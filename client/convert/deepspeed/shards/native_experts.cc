#include "client/convert/deepspeed/shards/native_experts.h"

#include <set>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/convert/files/convert_error.h"
#include "client/convert/files/rank_names.h"

namespace ckptd {
namespace {

constexpr std::string_view kExpert = ".deepspeed_moe.experts.deepspeed_experts.";

// The experts that files are of: {layer, expert}. A file of an optimizer's state is of none.
std::set<std::pair<int, int>> ExpertsOf(const std::vector<std::string>& files) {
  std::set<std::pair<int, int>> experts;
  for (const std::string& name : files) {
    std::string_view rest = name;
    const std::optional<int> layer = ConsumeRank(rest, "layer_");
    const std::optional<int> expert = layer ? ConsumeRank(rest, "_expert_") : std::nullopt;
    if (expert) experts.emplace(*layer, *expert);
  }
  return experts;
}

// What comes before the parameter's own name within the expert: "layers.0.deepspeed_moe.….3".
std::set<std::string> ExpertsIn(const std::vector<std::string>& names) {
  std::set<std::string> experts;
  for (const std::string& name : names) {
    if (const auto native = ParseNativeExpert(name))
      experts.insert(absl::StrCat(native->layer, native->number));
  }
  return experts;
}

}  // namespace

std::string NativeExpert::NameOf(int other) const { return absl::StrCat(layer, other, rest); }

std::optional<NativeExpert> ParseNativeExpert(const std::string& name) {
  const size_t at = name.find(kExpert);
  if (at == std::string::npos) return std::nullopt;
  std::string_view rest = std::string_view(name).substr(at);
  const std::optional<int> number = ConsumeRank(rest, kExpert);
  if (!number || !rest.starts_with('.')) return std::nullopt;
  return NativeExpert{name.substr(0, at + kExpert.size()), *number, std::string(rest)};
}

absl::Status CheckAllExpertsOnEachRank(const std::vector<std::string>& files,
                                       const std::vector<std::string>& names) {
  const size_t of_all = ExpertsOf(files).size(), of_rank = ExpertsIn(names).size();
  if (of_all == of_rank) return absl::OkStatus();
  return CannotConvert(absl::StrCat(
      "there are files of ", of_all, " experts, such as ", files.front(), ", and a rank trains ", of_rank,
      " of them: each expert-parallel rank gives its experts the same names, and a universal checkpoint has "
      "one folder for a name. Load the checkpoint with as many ranks as saved it, or recover its weights by "
      "zero-to-fp32; ds-to-universal converts experts with ep_size 1, and those of AutoEP"));
}

}  // namespace ckptd
