// Checks and converts text: UTF-8, and the text of Python's pickles.
#ifndef CKPTD_CLIENT_FORMATS_TEXT_H_
#define CKPTD_CLIENT_FORMATS_TEXT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ckptd {

// True for valid UTF-8: the shortest form of each character, no surrogates, nothing above U+10FFFF.
bool IsUtf8(std::string_view text);
// As IsUtf8, but allows lone surrogates, which a Python str may hold.
bool IsPythonText(std::string_view text);

void AppendCodePoint(uint32_t point, std::string& to);

// Decodes the text of pickle protocol 0: each byte is a character, or \uXXXX, or \UXXXXXXXX. nullopt if it is
// broken.
std::optional<std::string> FromRawUnicodeEscape(std::string_view line);

// Converts text to one byte for each character (Python's latin1), and back. nullopt if a character is above
// U+00FF.
std::optional<std::string> ToLatin1(std::string_view text);
std::string FromLatin1(std::string_view bytes);

}  // namespace ckptd
#endif  // CKPTD_CLIENT_FORMATS_TEXT_H_
