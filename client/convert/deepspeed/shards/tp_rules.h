// The rules of a universal checkpoint for merging the tensor-parallel slices of a parameter: which rule a
// parameter's name selects, by the patterns that the training program left in universal_checkpoint_info.
#ifndef CKPTD_CLIENT_CONVERT_DEEPSPEED_SHARDS_TP_RULES_H_
#define CKPTD_CLIENT_CONVERT_DEEPSPEED_SHARDS_TP_RULES_H_

#include <re2/re2.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "client/convert/deepspeed/state/affine_map.h"
#include "client/formats/torch/value.h"

namespace ckptd {

// A parameter that consists of several, such as a fused QKV: each of them is cut by itself.
struct SubParams {
  torch::ValueRef patterns, shape;     // As the program gave them.
  std::vector<int64_t> logical_shape;  // One dimension may be -1. That of `dimension` is not used.
  size_t dimension = 0;                // The one that is cut.
  std::vector<int64_t> sizes;          // Of the sub-parameters along it. Empty: `count` equal ones.
  int64_t count = 0;
  std::optional<std::vector<std::vector<int64_t>>> widths;  // Of each sub-parameter, for each rank.
};

struct TpRule {
  enum class Kind { kReplicated, kAverage, kTwoSubParams, kSubParams, kConcatenate, kMapped };

  Kind kind = Kind::kConcatenate;
  size_t dimension = 0;                  // For kConcatenate.
  std::optional<SubParams> subs;         // For kSubParams.
  std::shared_ptr<const AffineMap> map;  // For kMapped.
  // For kMapped: the number of experts, if they are what the first dimension enumerates.
  std::optional<int64_t> experts;
  std::optional<int64_t> vocabulary;  // The number of rows without the padding of the vocabulary.
};

class TpRules {
 public:
  // No rules: every parameter is concatenated along dimension 0.
  TpRules() = default;
  // CANNOT_CONVERT for what ckptd does not know, and for a pattern that needs more than a regular expression.
  static absl::StatusOr<TpRules> Parse(const torch::Dict& info);

  // CANNOT_CONVERT if several patterns of one kind match.
  absl::StatusOr<TpRule> RuleFor(const std::string& name);
  // True if the copies of later pipeline stages are to be ignored.
  bool IsPipelineReplicated(const std::string& name) const;
  // Patterns that no parameter has selected so far.
  std::vector<std::string> Unused() const;

 private:
  struct Pattern {
    std::string text;
    std::shared_ptr<RE2> compiled;
    bool used = false;
  };
  using Patterns = std::vector<Pattern>;
  struct SubPattern {
    Pattern pattern;
    SubParams params;
  };

  static absl::StatusOr<Patterns> Compile(const torch::Dict& info, std::string_view key);
  static absl::StatusOr<Pattern> CompileOne(const std::string& text);
  static bool Matches(const Pattern& pattern, const std::string& name);
  static absl::StatusOr<bool> Select(Patterns& patterns, const std::string& name);
  absl::Status ParseSubParams(const torch::Dict& info);
  absl::Status ParseMaps(const torch::Dict& info);
  absl::StatusOr<std::shared_ptr<const AffineMap>> MapFor(const std::string& name) const;
  absl::Status SelectKind(const std::string& name, TpRule& rule);
  absl::Status SelectAll(const std::string& name);
  SubPattern* SelectSubs(const std::string& name);

  Patterns replicated_, average_, two_subs_, rows_, vocabulary_, pipeline_;
  std::vector<SubPattern> subs_;
  std::vector<std::pair<Pattern, std::shared_ptr<const AffineMap>>> maps_;
  std::optional<int64_t> vocabulary_size_;
};

}  // namespace ckptd
#endif  // CKPTD_CLIENT_CONVERT_DEEPSPEED_SHARDS_TP_RULES_H_
