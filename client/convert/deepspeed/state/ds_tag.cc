#include "client/convert/deepspeed/state/ds_tag.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/convert/files/convert_error.h"
#include "client/convert/files/rank_names.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

constexpr size_t kMaxNamed = 32;
constexpr int64_t kMostMissing = 1 << 20;
constexpr std::string_view kOptimSuffix = "_optim_states.pt", kModelSuffix = "_model_states.pt";
constexpr std::string_view kPrecisions[] = {"", "bf16_", "fp16_"};

using NamesByRank = std::map<std::pair<int, int>, std::string>;  // {model-parallel, data-parallel rank}

std::string NameOfRank(std::string_view precision, int dp, int mp, std::string_view suffix) {
  return absl::StrCat(std::string(precision), absl::StrFormat("zero_pp_rank_%d_mp_rank_%02d", dp, mp),
                      std::string(suffix));
}

// The ranks in a name that DeepSpeed itself would write.
std::optional<std::pair<int, int>> ParseRanks(const std::string& name, std::string_view precision,
                                              std::string_view suffix) {
  std::string_view rest = name;
  if (!rest.starts_with(precision)) return std::nullopt;
  rest.remove_prefix(precision.size());
  const std::optional<int> dp = ConsumeRank(rest, "zero_pp_rank_");
  const std::optional<int> mp = dp ? ConsumeRank(rest, "_mp_rank_") : std::nullopt;
  if (!mp || NameOfRank(precision, *dp, *mp, suffix) != name) return std::nullopt;
  return std::pair(*mp, *dp);
}

std::optional<int> ParseModelRank(const std::string& name) {
  std::string_view rest = name;
  const std::optional<int> mp = ConsumeRank(rest, "mp_rank_");
  return mp && rest == kModelSuffix ? mp : std::nullopt;
}

// Brings names into a grid. `name_of` names a file that is missing, by model- and data-parallel rank.
absl::StatusOr<RankGrid> MakeGrid(const NamesByRank& names,
                                  const std::function<std::string(int mp, int dp)>& name_of) {
  int mp_count = 0, dp_count = 0;
  for (const auto& [ranks, name] : names) {
    mp_count = std::max(mp_count, ranks.first + 1);
    dp_count = std::max(dp_count, ranks.second + 1);
  }
  // A stray file of a high rank must not make a large grid.
  if (int64_t{mp_count} * dp_count > kMostMissing + static_cast<int64_t>(names.size())) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "INCOMPLETE_CHECKPOINT",
                     absl::StrCat("there are ", names.size(), " files as ", names.rbegin()->second, ", and ",
                                  mp_count, " model-parallel times ", dp_count, " data-parallel ranks"));
  }
  RankGrid grid;
  std::vector<std::string> missing;
  size_t count = 0;
  for (int mp = 0; mp < mp_count; ++mp) {
    std::vector<std::string>& row = grid.emplace_back();
    for (int dp = 0; dp < dp_count; ++dp) {
      const auto found = names.find({mp, dp});
      if (found != names.end()) {
        row.push_back(found->second);
      } else if (++count <= kMaxNamed) {
        missing.push_back(name_of(mp, dp));
      }
    }
  }
  if (count == 0) return grid;
  return MakeError(absl::StatusCode::kFailedPrecondition, "INCOMPLETE_CHECKPOINT",
                   absl::StrCat(count, count == 1 ? " file is missing: " : " files are missing: ",
                                absl::StrJoin(missing, ", "), count > kMaxNamed ? ", …" : "",
                                "; copy them here from the nodes that have them"));
}

class Scan {
 public:
  void Add(const std::string& name) {
    if (name.starts_with("layer_") && name.ends_with("model_states.pt")) {
      (name.find("_expert_") != std::string::npos ? tag_.experts : tag_.layers).push_back(name);
    } else if (name.starts_with("expp_rank_") && name.ends_with(kOptimSuffix)) {
      tag_.experts.push_back(name);
    } else if (const std::optional<int> mp = ParseModelRank(name)) {
      model_.emplace(std::pair(*mp, 0), name);
    } else if (const auto ranks = ParseRanks(name, "", kModelSuffix)) {
      stage3_model_.emplace(*ranks, name);
    } else {
      AddOptim(name);
    }
  }

  absl::StatusOr<DsTag> Finish() {
    if (optim_.empty()) {
      return MakeError(absl::StatusCode::kNotFound, "NO_OPTIMIZER_STATE",
                       "there is no file *zero_pp_rank_*_optim_states.pt: it is no tag that DeepSpeed has "
                       "saved with ZeRO");
    }
    if (optim_.size() > 1) {
      return CannotConvert(absl::StrCat("there are ", optim_.begin()->second.begin()->second, " and ",
                                        optim_.rbegin()->second.begin()->second,
                                        ": the files of two saves are mixed"));
    }
    const auto name_by = [](std::string_view precision, std::string_view suffix) {
      return [=](int mp, int dp) { return NameOfRank(precision, dp, mp, suffix); };
    };
    const auto& [precision, optim] = *optim_.begin();
    CKPTD_ASSIGN_OR_RETURN(tag_.optim, MakeGrid(optim, name_by(precision, kOptimSuffix)));
    CKPTD_ASSIGN_OR_RETURN(tag_.stage3_model, MakeGrid(stage3_model_, name_by("", kModelSuffix)));
    CKPTD_ASSIGN_OR_RETURN(const RankGrid model, MakeGrid(model_, [](int mp, int) {
                             return absl::StrFormat("mp_rank_%02d_model_states.pt", mp);
                           }));
    for (const std::vector<std::string>& row : model) tag_.model.push_back(row.front());
    return std::move(tag_);
  }

 private:
  void AddOptim(const std::string& name) {
    for (const std::string_view precision : kPrecisions) {
      if (const auto ranks = ParseRanks(name, precision, kOptimSuffix))
        optim_[precision].emplace(*ranks, name);
    }
  }

  std::map<std::string_view, NamesByRank> optim_;  // By precision.
  NamesByRank model_, stage3_model_;
  DsTag tag_;
};

}  // namespace

absl::StatusOr<DsTag> ScanDsTag(FileSystem& fs, Handle tag) {
  CKPTD_ASSIGN_OR_RETURN(std::vector<DirEntry> entries, fs.List(tag));
  std::sort(entries.begin(), entries.end(),
            [](const DirEntry& a, const DirEntry& b) { return a.name < b.name; });
  Scan scan;
  for (const DirEntry& entry : entries) scan.Add(entry.name);
  return scan.Finish();
}

}  // namespace ckptd
