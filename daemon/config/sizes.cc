#include "daemon/config/sizes.h"

#include <cstdint>
#include <limits>
#include <regex>
#include <string_view>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace ckptd {
namespace {

// Strings and comments, which stay; or a size: its number and the first letter of its unit.
const std::regex& Tokens() {
  static const std::regex& tokens = *new std::regex(
      R"re("(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|#[^\n]*|\b(\d+)([KMGT])iB\b)re", std::regex::optimize);
  return tokens;
}

std::string Bytes(const std::string& size, const std::string& number, const std::string& unit) {
  constexpr std::string_view kUnits = "KMGT";
  const auto shift = static_cast<int>(10 * (kUnits.find(unit[0]) + 1));
  int64_t value = 0;
  if (!absl::SimpleAtoi(number, &value) || value > (std::numeric_limits<int64_t>::max() >> shift))
    return size;
  return absl::StrCat(value << shift);
}

}  // namespace

std::string ExpandSizes(const std::string& text) {
  std::string out;
  auto copied = text.begin();
  for (std::sregex_iterator token(text.begin(), text.end(), Tokens()), end; token != end; ++token) {
    const std::smatch& match = *token;
    if (!match[1].matched) continue;
    out.append(copied, match[0].first);
    out += Bytes(match.str(), match.str(1), match.str(2));
    copied = match[0].second;
  }
  return out.append(copied, text.end());
}

}  // namespace ckptd
