#include "storage/format/names.h"

#include <charconv>
#include <cstddef>
#include <system_error>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "storage/base/errors.h"

namespace ckptd {
namespace {

constexpr size_t kMaxTagBytes = 200;
constexpr size_t kMaxPathBytes = 1000;
constexpr size_t kMaxComponentBytes = 255;
constexpr size_t kShownBytes = 100;  // Bytes of an invalid name in a message.
constexpr size_t kUniqueDigits = 16;

// An invalid name for a message: escaped, and cut if it is long.
std::string Shown(std::string_view name) {
  std::string shown = absl::StrCat("\"", absl::CHexEscape(std::string(name.substr(0, kShownBytes))), "\"");
  if (name.size() > kShownBytes) absl::StrAppend(&shown, "... (", name.size(), " bytes)");
  return shown;
}

absl::Status BadTag(std::string_view tag, const char* rule) {
  return MakeError(
      absl::StatusCode::kInvalidArgument, "INVALID_TAG",
      absl::StrCat("tag ", Shown(tag), " ", rule,
                   "; a tag is 1 to 200 characters of [A-Za-z0-9._=+,@-], the first not . or -"));
}

absl::Status BadPath(std::string_view path, const char* rule) {
  return MakeError(absl::StatusCode::kInvalidArgument, "INVALID_PATH",
                   absl::StrCat("file path ", Shown(path), " ", rule));
}

absl::Status BadPointer(const std::string& why) {
  return MakeError(absl::StatusCode::kInvalidArgument, "INVALID_POINTER", why);
}

bool IsTagCharacter(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
         std::string_view("._=+,@-").find(c) != std::string_view::npos;
}

// Removes one character from the front of `text` and returns its code point; -1 if the bytes are not valid
// UTF-8 (which has one form for each character, has no surrogates, and ends at U+10FFFF).
int32_t TakeCodePoint(std::string_view& text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  size_t length = 0;
  int32_t point = 0;
  int32_t smallest = 0;
  if (first < 0x80) {
    length = 1, point = first;
  } else if (first >= 0xc0 && first < 0xe0) {
    length = 2, point = first & 0x1f, smallest = 0x80;
  } else if (first >= 0xe0 && first < 0xf0) {
    length = 3, point = first & 0x0f, smallest = 0x800;
  } else if (first >= 0xf0 && first < 0xf8) {
    length = 4, point = first & 0x07, smallest = 0x10000;
  } else {
    return -1;
  }
  if (text.size() < length) return -1;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return -1;
    point = (point << 6) | (byte(i) & 0x3f);
  }
  text.remove_prefix(length);
  if (point < smallest || point > 0x10ffff || (point >= 0xd800 && point < 0xe000)) return -1;
  return point;
}

// What is wrong with one component of a path; null if nothing is.
const char* ComponentFault(std::string_view component) {
  if (component.empty())
    return "has an empty component (it must be relative, without // and without / at the end)";
  if (component == "." || component == "..") return "has a component . or ..";
  if (component.size() > kMaxComponentBytes) return "has a component of more than 255 bytes";
  while (!component.empty()) {
    const int32_t point = TakeCodePoint(component);
    if (point < 0) return "is not valid UTF-8";
    if (point < 0x20 || (point >= 0x7f && point < 0xa0)) return "has a control character";
  }
  return nullptr;
}

template <typename Number>
std::optional<Number> ParseNumber(std::string_view digits, int base = 10) {
  Number value = 0;
  const char* end = digits.data() + digits.size();
  const auto [rest, error] = std::from_chars(digits.data(), end, value, base);
  if (error != std::errc() || rest != end) return std::nullopt;
  return value;
}

// The number at the end of a name, after its last dot, if `name_of` gives that name to a number of at
// least 1.
std::optional<int64_t> ParseNumbered(std::string_view name, std::string (*name_of)(int64_t)) {
  const size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const std::optional<int64_t> number = ParseNumber<int64_t>(name.substr(dot + 1));
  if (!number.has_value() || *number < 1 || name_of(*number) != name) return std::nullopt;
  return number;
}

}  // namespace

absl::Status CheckTag(std::string_view tag) {
  if (tag.empty()) return BadTag(tag, "is empty");
  if (tag.size() > kMaxTagBytes) return BadTag(tag, "is longer than 200 characters");
  for (const char c : tag) {
    if (!IsTagCharacter(c)) return BadTag(tag, "has a character that a tag may not have");
  }
  if (tag[0] == '.' || tag[0] == '-') return BadTag(tag, "begins with . or -");
  if (tag == "latest") return BadTag(tag, "is reserved: it means the newest checkpoint");
  return absl::OkStatus();
}

absl::Status CheckFilePath(std::string_view path) {
  if (path.empty()) return BadPath(path, "is empty");
  if (path.size() > kMaxPathBytes) return BadPath(path, "is longer than 1000 bytes");
  std::string_view rest = path;
  for (bool first = true;; first = false) {
    const size_t slash = rest.find('/');
    const std::string_view component = rest.substr(0, slash);
    if (const char* fault = ComponentFault(component)) return BadPath(path, fault);
    if (first && component == kOurDirectory) return BadPath(path, "begins with .ckptd, which is reserved");
    if (slash == std::string_view::npos) return absl::OkStatus();
    rest.remove_prefix(slash + 1);
  }
}

absl::Status CheckPointerName(std::string_view name) {
  if (const absl::Status path = CheckFilePath(name); !path.ok()) {
    return BadPointer(
        absl::StrCat("the name of a pointer is not a file name: ", std::string(path.message())));
  }
  if (name.find('/') == std::string_view::npos) return absl::OkStatus();
  return BadPointer(
      absl::StrCat("pointer ", Shown(name), " has a /; a pointer is a file in the root itself"));
}

absl::Status CheckPointers(std::string_view tag, const std::map<std::string, std::string>& pointers) {
  if (pointers.size() > kMaxPointers) {
    return BadPointer(absl::StrCat(pointers.size(), " pointers; at most ", kMaxPointers));
  }
  size_t bytes = 0;
  for (const auto& [name, content] : pointers) {
    if (const absl::Status good = CheckPointerName(name); !good.ok()) return good;
    if (name == tag) return BadPointer(absl::StrCat("pointer ", Shown(name), " is the tag of its own save"));
    if (content.empty()) return BadPointer(absl::StrCat("pointer ", Shown(name), " has no content"));
    bytes += name.size() + content.size();
  }
  if (bytes <= kMaxPointerBytes) return absl::OkStatus();
  return BadPointer(absl::StrCat("the names and contents of the pointers have ", bytes, " bytes; at most ",
                                 kMaxPointerBytes, " together"));
}

std::vector<std::string> ParentDirectories(std::string_view path) {
  std::vector<std::string> parents;
  for (size_t slash = path.find('/'); slash != std::string_view::npos; slash = path.find('/', slash + 1)) {
    parents.emplace_back(path.substr(0, slash));
  }
  return parents;
}

std::string PartRecordName(int rank) { return absl::StrFormat("part-%05d", rank); }

std::optional<int> ParsePartRecordName(std::string_view name) {
  constexpr std::string_view kPrefix = "part-";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const std::optional<int> rank = ParseNumber<int>(name.substr(kPrefix.size()));
  if (!rank.has_value() || *rank < 0 || PartRecordName(*rank) != name) return std::nullopt;
  return rank;
}

std::string RemovedName(int64_t sequence) {
  return absl::StrCat(std::string(kOurDirectory), ".removed.", sequence);
}

std::optional<int64_t> ParseRemovedName(std::string_view name) { return ParseNumbered(name, &RemovedName); }

std::string NodeDirectory(std::string_view node) {
  return absl::StrCat(std::string(kOurDirectory), "/", std::string(kNodesDirectory), "/", std::string(node));
}

std::string NodePartRecordName(std::string_view node, std::string_view digest) {
  return absl::StrCat("node.", std::string(node), ".", std::string(digest));
}

std::string NewFilesName(std::string_view node, uint64_t unique) {
  return absl::StrFormat("new.%s.%016x", std::string(node), unique);
}

bool IsNewFilesName(std::string_view name, std::string_view node) {
  const size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return false;
  const std::optional<uint64_t> unique = ParseNumber<uint64_t>(name.substr(dot + 1), 16);
  return unique.has_value() && NewFilesName(node, *unique) == name;
}

std::string SharedRecordName(int64_t term) { return absl::StrCat("record.", term); }

std::optional<int64_t> ParseSharedRecordName(std::string_view name) {
  return ParseNumbered(name, &SharedRecordName);
}

std::string TermName(int64_t term) { return absl::StrCat("term.", term); }

std::optional<int64_t> ParseTermName(std::string_view name) { return ParseNumbered(name, &TermName); }

std::string InflightName(std::string_view tag, int64_t sequence, uint64_t unique) {
  return absl::StrFormat("%s.%d.%016x", std::string(tag), sequence, unique);
}

std::optional<InflightId> ParseInflightName(std::string_view name) {
  const size_t last = name.rfind('.');
  if (last == std::string_view::npos || last == 0) return std::nullopt;
  const size_t middle = name.rfind('.', last - 1);
  if (middle == std::string_view::npos) return std::nullopt;
  const std::string_view tag = name.substr(0, middle);
  const std::optional<int64_t> sequence = ParseNumber<int64_t>(name.substr(middle + 1, last - middle - 1));
  const std::string_view digits = name.substr(last + 1);
  const std::optional<uint64_t> unique = ParseNumber<uint64_t>(digits, 16);
  if (digits.size() != kUniqueDigits || !sequence.has_value() || !unique.has_value()) return std::nullopt;
  if (*sequence < 1 || !CheckTag(tag).ok() || InflightName(tag, *sequence, *unique) != name)
    return std::nullopt;
  return InflightId{std::string(tag), *sequence};
}

}  // namespace ckptd
