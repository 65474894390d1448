// Formats text for people: sizes, durations, aligned tables.
#ifndef CKPTD_CLIENT_CKPTCTL_TEXT_TEXT_H_
#define CKPTD_CLIENT_CKPTCTL_TEXT_TEXT_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ckptd::ctl {

std::string HumanBytes(int64_t bytes);     // "0 B", "1.5 GiB", "812 MiB".
std::string HumanSeconds(double seconds);  // "0.25 s", "12 s", "3 min 12 s", "2 h 5 min", "3 d 4 h".
std::string LocalTime(int64_t unix_us);    // "2026-01-31 12:03:10".
std::string Plural(int64_t count, std::string_view one);  // "1 session", "2 sessions".
// Replaces control characters by `?`, so that text from a daemon or a directory cannot move the terminal's
// cursor.
std::string Printable(std::string_view text);
// Printable text on one line: runs of line breaks, tabs and spaces become one space.
std::string OneLine(std::string_view text);
// Text for a terminal: words for a bad state, such as FAILED, in red, and WARNING in yellow.
std::string Highlight(std::string_view text);

// The word that differs least from `word`, by at most two characters that are missing, extra, wrong or
// swapped with the next; "" if none is that close.
std::string Nearest(std::string_view word, const std::vector<std::string>& words);

// A table with columns as wide as their widest cell, two spaces between columns, and no trailing spaces.
class Table {
 public:
  explicit Table(std::vector<std::string> header) { Add(std::move(header)); }
  void Add(std::vector<std::string> row);
  bool empty() const { return rows_.size() == 1; }
  // With `indent` spaces before each line.
  std::string ToString(int indent = 0) const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace ckptd::ctl
#endif  // CKPTD_CLIENT_CKPTCTL_TEXT_TEXT_H_
