#include "client/ckptctl/text/text.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace ckptd::ctl {
namespace {

// Counts characters, not bytes, so that a column of UTF-8 stays aligned.
size_t Width(const std::string& text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

}  // namespace

std::string HumanBytes(int64_t bytes) {
  if (bytes < 1024) return absl::StrCat(bytes, " B");
  static constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes) / 1024;
  int unit = 0;
  while (value >= 1023.95 && unit < 5) {
    value /= 1024;
    ++unit;
  }
  return value < 99.95 ? absl::StrFormat("%.1f %s", value, kUnits[unit])
                       : absl::StrFormat("%.0f %s", value, kUnits[unit]);
}

std::string HumanSeconds(double seconds) {
  if (seconds < 0) seconds = 0;
  if (seconds < 9.95) return absl::StrFormat("%.2g s", seconds < 0.001 ? 0.0 : seconds);
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole < 60) return absl::StrFormat("%d s", whole);
  if (whole < 3600) return absl::StrFormat("%d min %d s", whole / 60, whole % 60);
  if (whole < 86400) return absl::StrFormat("%d h %d min", whole / 3600, whole % 3600 / 60);
  return absl::StrFormat("%d d %d h", whole / 86400, whole % 86400 / 3600);
}

std::string LocalTime(int64_t unix_us) {
  const std::time_t seconds = unix_us / 1'000'000;
  std::tm local = {};
  localtime_r(&seconds, &local);
  char text[40];
  return std::string(text, std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &local));
}

std::string Plural(int64_t count, std::string_view one) {
  return absl::StrCat(count, " ", std::string(one), count == 1 ? "" : "s");
}

std::string Printable(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return result;
}

std::string OneLine(std::string_view text) {
  std::string line;
  for (const char c : text) {
    const bool space = c == ' ' || (c >= '\t' && c <= '\r');
    if (!space) {
      line += c;
    } else if (!line.empty() && line.back() != ' ') {
      line += ' ';
    }
  }
  if (!line.empty() && line.back() == ' ') line.pop_back();
  return Printable(line);
}

std::string Highlight(std::string_view text) {
  static constexpr std::pair<std::string_view, std::string_view> kColors[] = {
      {"DAMAGED", "31"},        {"DEGRADED", "31"},      {"FAILED", "31"},
      {"FAILURE", "31"},        {"INDETERMINATE", "31"}, {"READ-ONLY", "31"},
      {"NOT REGISTERED", "31"}, {"REFUSED", "31"},       {"WARNING", "33"}};
  const auto is_word = [&](size_t at) {
    return at < text.size() && (absl::ascii_isalnum(static_cast<unsigned char>(text[at])) || text[at] == '_');
  };
  std::string colored;
  for (size_t i = 0; i < text.size();) {
    const auto* found = std::find_if(std::begin(kColors), std::end(kColors), [&](const auto& entry) {
      return text.substr(i).starts_with(entry.first) && !is_word(i - 1) && !is_word(i + entry.first.size());
    });
    if (found == std::end(kColors)) {
      colored += text[i++];
      continue;
    }
    absl::StrAppend(&colored, "\x1b[", std::string(found->second), "m", std::string(found->first), "\x1b[0m");
    i += found->first.size();
  }
  return colored;
}

void Table::Add(std::vector<std::string> row) {
  for (std::string& cell : row) cell = Printable(cell);
  rows_.push_back(std::move(row));
}

std::string Table::ToString(int indent) const {
  std::vector<size_t> widths;
  for (const auto& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], Width(row[i]));
  }
  std::string text;
  for (const auto& row : rows_) {
    std::string line(static_cast<size_t>(indent), ' ');
    for (size_t i = 0; i < row.size(); ++i) {
      line += row[i];
      if (i + 1 < row.size()) line.append(widths[i] - Width(row[i]) + 2, ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

namespace {

// The edit distance of Levenshtein, where swapping two neighbours is one edit, too.
size_t Distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace

std::string Nearest(std::string_view word, const std::vector<std::string>& words) {
  std::string nearest;
  size_t least = std::min<size_t>(3, word.size());  // As many wrong characters as that are another word.
  for (const std::string& other : words) {
    if (const size_t distance = Distance(word, other); distance < least) {
      least = distance;
      nearest = other;
    }
  }
  return nearest;
}

}  // namespace ckptd::ctl
