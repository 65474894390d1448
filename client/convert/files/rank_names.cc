#include "client/convert/files/rank_names.h"

#include <charconv>
#include <cstddef>
#include <system_error>

namespace ckptd {

std::optional<int> ConsumeRank(std::string_view& text, std::string_view word) {
  if (!text.starts_with(word)) return std::nullopt;
  text.remove_prefix(word.size());
  int rank = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rank);
  if (error != std::errc() || end == text.data() || rank < 0 || rank >= kMaxRanks) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return rank;
}

}  // namespace ckptd
