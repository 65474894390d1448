// Parses the ranks in the names of checkpoint files.
#ifndef CKPTD_CLIENT_CONVERT_FILES_RANK_NAMES_H_
#define CKPTD_CLIENT_CONVERT_FILES_RANK_NAMES_H_

#include <optional>
#include <string_view>

namespace ckptd {

constexpr int kMaxRanks = 1 << 20;

// Removes `word` and a number below kMaxRanks from the front of `text`, and returns the number. nullopt, and
// `text` is undefined, if it does not begin so.
std::optional<int> ConsumeRank(std::string_view& text, std::string_view word);

}  // namespace ckptd
#endif  // CKPTD_CLIENT_CONVERT_FILES_RANK_NAMES_H_
