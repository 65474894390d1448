#include "client/formats/text.h"

#include <charconv>
#include <cstddef>
#include <cstring>
#include <system_error>

namespace ckptd {
namespace {

constexpr uint32_t kLastCodePoint = 0x10ffff;

// Removes one character from the front of `text`, which is not empty. nullopt if it is not valid.
std::optional<uint32_t> TakeCodePoint(std::string_view& text) {
  const auto first = static_cast<uint8_t>(text[0]);
  size_t length = 1;
  uint32_t point = first, smallest = 0;
  if (first >= 0xf0 && first < 0xf8) {
    length = 4, point = first & 0x07, smallest = 0x10000;
  } else if (first >= 0xe0) {
    length = 3, point = first & 0x0f, smallest = 0x800;
  } else if (first >= 0xc0) {
    length = 2, point = first & 0x1f, smallest = 0x80;
  }
  if (text.size() < length || first >= 0xf8 || (first >= 0x80 && length == 1)) return std::nullopt;
  for (size_t i = 1; i < length; ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    if ((byte & 0xc0) != 0x80) return std::nullopt;
    point = point << 6 | (byte & 0x3f);
  }
  if (point < smallest || point > kLastCodePoint) return std::nullopt;
  text.remove_prefix(length);
  return point;
}

// The number of ASCII characters at the front of `text`.
size_t AsciiRun(std::string_view text) {
  size_t run = 0;
  for (uint64_t eight = 0; run + sizeof(eight) <= text.size(); run += sizeof(eight)) {
    std::memcpy(&eight, text.data() + run, sizeof(eight));
    if ((eight & 0x8080808080808080) != 0) break;
  }
  while (run < text.size() && static_cast<uint8_t>(text[run]) < 0x80) ++run;
  return run;
}

template <typename Condition>
bool EveryCodePoint(std::string_view text, Condition condition) {
  while (!text.empty()) {
    if (const size_t run = AsciiRun(text); run > 0) {
      text.remove_prefix(run);
    } else if (const std::optional<uint32_t> point = TakeCodePoint(text); !point || !condition(*point)) {
      return false;
    }
  }
  return true;
}

}  // namespace

bool IsUtf8(std::string_view text) {
  return EveryCodePoint(text, [](uint32_t point) { return point < 0xd800 || point >= 0xe000; });
}

bool IsPythonText(std::string_view text) {
  return EveryCodePoint(text, [](uint32_t) { return true; });
}

void AppendCodePoint(uint32_t point, std::string& to) {
  const auto follow = [&](int shift) { to.push_back(static_cast<char>(0x80 | (point >> shift & 0x3f))); };
  if (point < 0x80) {
    to.push_back(static_cast<char>(point));
  } else if (point < 0x800) {
    to.push_back(static_cast<char>(0xc0 | point >> 6));
    follow(0);
  } else if (point < 0x10000) {
    to.push_back(static_cast<char>(0xe0 | point >> 12));
    follow(6), follow(0);
  } else {
    to.push_back(static_cast<char>(0xf0 | point >> 18));
    follow(12), follow(6), follow(0);
  }
}

std::optional<std::string> FromRawUnicodeEscape(std::string_view line) {
  std::string text;
  for (size_t i = 0; i < line.size();) {
    const bool escaped = line[i] == '\\' && i + 1 < line.size() && (line[i + 1] == 'u' || line[i + 1] == 'U');
    if (!escaped) {
      AppendCodePoint(static_cast<uint8_t>(line[i++]), text);
      continue;
    }
    const std::string_view digits = line.substr(i + 2, line[i + 1] == 'u' ? 4 : 8);
    uint32_t point = 0;
    const auto [rest, error] = std::from_chars(digits.data(), digits.data() + digits.size(), point, 16);
    if (digits.size() != (line[i + 1] == 'u' ? 4 : 8) || error != std::errc() ||
        rest != digits.data() + digits.size() || point > kLastCodePoint) {
      return std::nullopt;
    }
    AppendCodePoint(point, text);
    i += 2 + digits.size();
  }
  return text;
}

std::optional<std::string> ToLatin1(std::string_view text) {
  std::string bytes;
  bytes.reserve(text.size());
  while (!text.empty()) {
    if (const size_t run = AsciiRun(text); run > 0) {
      bytes.append(text.substr(0, run));
      text.remove_prefix(run);
      continue;
    }
    const std::optional<uint32_t> point = TakeCodePoint(text);
    if (!point || *point > 0xff) return std::nullopt;
    bytes.push_back(static_cast<char>(*point));
  }
  return bytes;
}

std::string FromLatin1(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  for (const char byte : bytes) AppendCodePoint(static_cast<uint8_t>(byte), text);
  return text;
}

}  // namespace ckptd
