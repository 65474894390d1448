#include "client/convert/deepspeed/shards/tp_rules.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/convert/deepspeed/state/ds_value.h"
#include "client/convert/files/convert_error.h"
#include "client/convert/files/value_text.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

using torch::Dict;
using torch::ValueRef;

constexpr double kVersionWithWidths = 0.4;

double VersionOf(const Dict& info) {
  const ValueRef value = info.Find("universal_checkpoint_version");
  if (value == nullptr) return 0;
  if (const auto* number = value->As<double>()) return *number;
  const auto* whole = value->As<int64_t>();
  return whole != nullptr ? static_cast<double>(*whole) : 0;
}

bool IsEmpty(const ValueRef& value) {
  if (value == nullptr || value->As<torch::None>() != nullptr) return true;
  const auto* dict = value->As<Dict>();
  return dict != nullptr && dict->empty();
}

// Parameters that DeepSpeed's tensor parallelism cuts in a way that it cannot describe itself.
absl::Status CheckSupported(const Dict& info) {
  constexpr char kKey[] = "autotp_unsupported_parameter_patterns";
  if (IsEmpty(info.Find(kKey))) return absl::OkStatus();
  CKPTD_ASSIGN_OR_RETURN(const Dict* reasons, ds::As<Dict>(info.Find(kKey), kKey, "a dict"));
  std::vector<std::string> texts;
  for (const auto& [pattern, reason] : reasons->entries())
    texts.push_back(absl::StrCat(ValueText(*pattern), " (", ValueText(*reason), ")"));
  return CannotConvert(absl::StrCat("universal_checkpoint_info has ", kKey,
                                    ", which nothing can merge: ", absl::StrJoin(texts, ", ")));
}

// One dimension of a SubparamShape: a number, or a tuple of numbers.
absl::StatusOr<std::vector<int64_t>> Dimension(const ValueRef& value) {
  if (const auto* number = value->As<int64_t>()) return std::vector<int64_t>{*number};
  return ds::Sizes(value, "the shape of sub-parameters");
}

absl::StatusOr<SubParams> ParseOne(const Dict& fields, double version) {
  SubParams subs;
  subs.patterns = fields.Find("patterns");
  subs.shape = fields.Find("shape");
  CKPTD_ASSIGN_OR_RETURN(const int64_t dimension, ds::Integer(fields.Find("partition_dim"), "partition_dim"));
  CKPTD_ASSIGN_OR_RETURN(const std::vector<ValueRef>* shape,
                         ds::Items(subs.shape, "the shape of sub-parameters"));
  if (dimension < 0 || dimension >= static_cast<int64_t>(shape->size()))
    return CannotConvert(absl::StrCat("partition_dim is ", dimension, " of ", shape->size(), " dimensions"));
  subs.dimension = static_cast<size_t>(dimension);
  for (size_t i = 0; i < shape->size(); ++i) {
    CKPTD_ASSIGN_OR_RETURN(const std::vector<int64_t> sizes, Dimension((*shape)[i]));
    subs.logical_shape.push_back(std::accumulate(sizes.begin(), sizes.end(), int64_t{0}));
    if (i != subs.dimension) continue;
    if ((*shape)[i]->As<int64_t>() == nullptr) {
      subs.sizes = sizes;
    } else if (version < kVersionWithWidths && sizes.front() > 0) {
      subs.count = sizes.front();
    } else {
      return ds::Unexpected("the shape of sub-parameters along partition_dim", (*shape)[i].get(), "sizes");
    }
  }
  return subs;
}

absl::Status ReadWidths(const Dict& info, const std::string& pattern, SubParams& subs) {
  CKPTD_ASSIGN_OR_RETURN(const Dict* by_pattern, ds::As<Dict>(info.Find("sub_param_shard_widths"),
                                                              "sub_param_shard_widths", "a dict"));
  CKPTD_ASSIGN_OR_RETURN(const std::vector<ValueRef>* rows,
                         ds::Items(by_pattern->Find(pattern), "sub_param_shard_widths"));
  subs.widths.emplace();
  for (const ValueRef& row : *rows) {
    CKPTD_ASSIGN_OR_RETURN(std::vector<int64_t> widths, ds::Sizes(row, "sub_param_shard_widths"));
    subs.widths->push_back(std::move(widths));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TpRules::Pattern> TpRules::CompileOne(const std::string& text) {
  RE2::Options options;
  options.set_log_errors(false);
  Pattern pattern = {.text = text, .compiled = std::make_shared<RE2>(text, options)};
  if (pattern.compiled->ok()) return pattern;
  return CannotConvert(absl::StrCat("the pattern \"", text, "\": ", pattern.compiled->error(),
                                    "; ckptd knows patterns without references and look-around"));
}

absl::StatusOr<TpRules::Patterns> TpRules::Compile(const Dict& info, std::string_view key) {
  CKPTD_ASSIGN_OR_RETURN(const std::vector<std::string> texts, ds::Names(info.Find(key), key));
  Patterns patterns;
  for (const std::string& text : texts) {
    CKPTD_ASSIGN_OR_RETURN(Pattern pattern, CompileOne(text));
    patterns.push_back(std::move(pattern));
  }
  return patterns;
}

absl::StatusOr<TpRules> TpRules::Parse(const Dict& info) {
  CKPTD_RETURN_IF_ERROR(CheckSupported(info));
  TpRules rules;
  CKPTD_ASSIGN_OR_RETURN(rules.replicated_, Compile(info, "tp_replicated_parameter_patterns"));
  CKPTD_ASSIGN_OR_RETURN(rules.average_, Compile(info, "parameter_to_average_patterns"));
  CKPTD_ASSIGN_OR_RETURN(rules.two_subs_, Compile(info, "parameter_with_2_sub_params_cat_dim_0"));
  CKPTD_ASSIGN_OR_RETURN(rules.rows_, Compile(info, "parameter_with_row_parallelism_patterns"));
  CKPTD_ASSIGN_OR_RETURN(rules.vocabulary_, Compile(info, "vocabulary_parameter_patterns"));
  CKPTD_ASSIGN_OR_RETURN(rules.pipeline_, Compile(info, "pipeline_replicated_parameter_patterns"));
  CKPTD_RETURN_IF_ERROR(rules.ParseSubParams(info));
  CKPTD_RETURN_IF_ERROR(rules.ParseMaps(info));
  if (!rules.vocabulary_.empty()) {
    CKPTD_ASSIGN_OR_RETURN(rules.vocabulary_size_,
                           ds::Integer(info.Find("original_vocab_size"), "original_vocab_size"));
    if (*rules.vocabulary_size_ < 0) return CannotConvert("original_vocab_size is negative");
  }
  return rules;
}

absl::Status TpRules::ParseSubParams(const Dict& info) {
  constexpr char kKey[] = "parameter_with_sub_params";
  if (IsEmpty(info.Find(kKey))) return absl::OkStatus();
  CKPTD_ASSIGN_OR_RETURN(const std::vector<ValueRef>* items, ds::Items(info.Find(kKey), kKey));
  const double version = VersionOf(info);
  for (const ValueRef& item : *items) {
    CKPTD_ASSIGN_OR_RETURN(const Dict* fields, ds::As<Dict>(item, kKey, "dicts"));
    CKPTD_ASSIGN_OR_RETURN(const SubParams params, ParseOne(*fields, version));
    CKPTD_ASSIGN_OR_RETURN(const std::vector<std::string> texts, ds::Names(params.patterns, kKey));
    for (const std::string& text : texts) {
      CKPTD_ASSIGN_OR_RETURN(Pattern pattern, CompileOne(text));
      SubPattern& sub = subs_.emplace_back(SubPattern{std::move(pattern), params});
      if (version >= kVersionWithWidths) CKPTD_RETURN_IF_ERROR(ReadWidths(info, text, sub.params));
    }
  }
  return absl::OkStatus();
}

absl::Status TpRules::ParseMaps(const Dict& info) {
  constexpr char kKey[] = "affine_map";
  constexpr int64_t kVersion = 1;
  if (IsEmpty(info.Find(kKey))) return absl::OkStatus();
  CKPTD_ASSIGN_OR_RETURN(const Dict* fields, ds::As<Dict>(info.Find(kKey), kKey, "a dict"));
  if (const ValueRef version = fields->Find("version")) {
    CKPTD_ASSIGN_OR_RETURN(const int64_t number, ds::Integer(version, "version of affine_map"));
    if (number > kVersion)
      return CannotConvert(
          absl::StrCat("affine_map is of version ", number, ", and ckptd knows up to ", kVersion));
  }
  CKPTD_ASSIGN_OR_RETURN(const Dict* maps, ds::OptionalDict(fields->Find("params"), "params of affine_map"));
  if (maps == nullptr) return absl::OkStatus();
  for (const auto& [key, value] : maps->entries()) {
    CKPTD_ASSIGN_OR_RETURN(const auto* text, ds::As<std::string>(key, "params of affine_map", "patterns"));
    CKPTD_ASSIGN_OR_RETURN(Pattern pattern, CompileOne(*text));
    absl::StatusOr<AffineMap> map = ParseAffineMap(value);
    if (!map.ok()) return Annotate(map.status(), absl::StrCat("the pattern \"", *text, "\""));
    maps_.emplace_back(std::move(pattern), std::make_shared<const AffineMap>(*std::move(map)));
  }
  return absl::OkStatus();
}

// As Python's re.match: at the begin of the name.
bool TpRules::Matches(const Pattern& pattern, const std::string& name) {
  return pattern.compiled->Match(name, 0, name.size(), RE2::ANCHOR_START, nullptr, 0);
}

absl::StatusOr<bool> TpRules::Select(Patterns& patterns, const std::string& name) {
  Pattern* selected = nullptr;
  for (Pattern& pattern : patterns) {
    if (!Matches(pattern, name)) continue;
    if (selected != nullptr)
      return CannotConvert(
          absl::StrCat(name, " matches \"", selected->text, "\" and \"", pattern.text, "\""));
    selected = &pattern;
  }
  if (selected != nullptr) selected->used = true;
  return selected != nullptr;
}

absl::StatusOr<std::shared_ptr<const AffineMap>> TpRules::MapFor(const std::string& name) const {
  std::shared_ptr<const AffineMap> selected;
  const Pattern* by = nullptr;
  for (const auto& [pattern, map] : maps_) {
    if (!Matches(pattern, name)) continue;
    if (by != nullptr)
      return CannotConvert(
          absl::StrCat(name, " matches \"", by->text, "\" and \"", pattern.text, "\" in affine_map"));
    by = &pattern;
    selected = map;
  }
  return selected;
}

TpRules::SubPattern* TpRules::SelectSubs(const std::string& name) {
  const auto sub = std::find_if(subs_.begin(), subs_.end(),
                                [&](const SubPattern& one) { return Matches(one.pattern, name); });
  if (sub == subs_.end()) return nullptr;
  sub->pattern.used = true;
  return &*sub;
}

// In the order of ds_to_universal.py, which decides when several kinds match.
absl::Status TpRules::SelectKind(const std::string& name, TpRule& rule) {
  const SubPattern* sub = SelectSubs(name);
  CKPTD_ASSIGN_OR_RETURN(const bool replicated, Select(replicated_, name));
  CKPTD_ASSIGN_OR_RETURN(const bool average, replicated ? false : Select(average_, name));
  CKPTD_ASSIGN_OR_RETURN(const bool two, replicated || average ? false : Select(two_subs_, name));
  if (replicated) {
    rule.kind = TpRule::Kind::kReplicated;
  } else if (average) {
    rule.kind = TpRule::Kind::kAverage;
  } else if (two) {
    rule.kind = TpRule::Kind::kTwoSubParams;
  } else if (sub != nullptr) {
    rule.kind = TpRule::Kind::kSubParams;
    rule.subs = sub->params;
  } else {
    CKPTD_ASSIGN_OR_RETURN(const bool row, Select(rows_, name));
    rule.dimension = row ? 1 : 0;
  }
  return absl::OkStatus();
}

// The patterns of a parameter that has a map are there for programs that do not know maps. They count as
// used.
absl::Status TpRules::SelectAll(const std::string& name) {
  SelectSubs(name);
  for (Patterns* patterns : {&replicated_, &average_, &two_subs_, &rows_})
    CKPTD_RETURN_IF_ERROR(Select(*patterns, name).status());
  return absl::OkStatus();
}

absl::StatusOr<TpRule> TpRules::RuleFor(const std::string& name) {
  TpRule rule;
  CKPTD_ASSIGN_OR_RETURN(rule.map, MapFor(name));
  if (rule.map != nullptr) rule.kind = TpRule::Kind::kMapped;
  CKPTD_RETURN_IF_ERROR(rule.map != nullptr ? SelectAll(name) : SelectKind(name, rule));
  CKPTD_ASSIGN_OR_RETURN(const bool vocabulary, Select(vocabulary_, name));
  if (vocabulary) rule.vocabulary = vocabulary_size_;
  return rule;
}

bool TpRules::IsPipelineReplicated(const std::string& name) const {
  return std::any_of(pipeline_.begin(), pipeline_.end(),
                     [&](const Pattern& pattern) { return Matches(pattern, name); });
}

std::vector<std::string> TpRules::Unused() const {
  std::vector<std::string> unused;
  for (const Patterns* patterns : {&replicated_, &average_, &two_subs_, &rows_, &vocabulary_}) {
    for (const Pattern& pattern : *patterns) {
      if (!pattern.used) unused.push_back(pattern.text);
    }
  }
  for (const SubPattern& sub : subs_) {
    if (!sub.pattern.used) unused.push_back(sub.pattern.text);
  }
  return unused;
}

}  // namespace ckptd
