#include "client/ckptctl/convert/weight_options.h"

#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "storage/base/errors.h"

namespace ckptd::ctl {

absl::StatusOr<std::optional<int64_t>> ParseShardSize(const std::string& text) {
  static const std::map<std::string, double> kUnits = {
      {"", 1}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}};
  std::string upper = absl::AsciiStrToUpper(std::string(absl::StripAsciiWhitespace(text)));
  if (upper == "NONE") return std::nullopt;
  const size_t unit_at = upper.find_last_of("0123456789.") + 1;
  const auto unit = kUnits.find(std::string(absl::StripAsciiWhitespace(upper.substr(unit_at))));
  double number = 0;
  if (unit == kUnits.end() || !absl::SimpleAtod(upper.substr(0, unit_at), &number) ||
      !(number * unit->second >= 1) || number * unit->second > 1e18) {
    return InvalidArgument(absl::StrCat("--max_shard_size is \"", text,
                                        "\"; give digits and KB, MB, GB or TB, such as 5GB, or none for one "
                                        "file"));
  }
  return static_cast<int64_t>(number * unit->second);
}

absl::StatusOr<DataType> ParseWeightType(std::string text) {
  static const std::map<std::string, DataType> kTypes = {
      {"float32", DataType::kFloat32}, {"fp32", DataType::kFloat32},  {"float16", DataType::kFloat16},
      {"fp16", DataType::kFloat16},    {"bf16", DataType::kBFloat16}, {"bfloat16", DataType::kBFloat16},
  };
  absl::AsciiStrToLower(&text);
  const auto type = kTypes.find(std::string(absl::StripPrefix(text, "torch.")));
  if (type == kTypes.end())
    return InvalidArgument(absl::StrCat("--dtype is \"", text, "\"; give float32, float16 or bfloat16"));
  return type->second;
}

}  // namespace ckptd::ctl
