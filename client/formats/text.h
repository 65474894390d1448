// UTF-8 and Python's text, as the files of others have them.
#ifndef CKPTD_CLIENT_FORMATS_TEXT_H_
#define CKPTD_CLIENT_FORMATS_TEXT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ckptd {

// The shortest form of each character, none of them a surrogate, up to U+10FFFF.
bool IsUtf8(std::string_view text);
// The same with lone surrogates, which a Python str may hold.
bool IsPythonText(std::string_view text);

void AppendCodePoint(uint32_t point, std::string& to);

// The text of protocol 0: each byte a character, or \uXXXX, or \UXXXXXXXX. nullopt for a broken one.
std::optional<std::string> FromRawUnicodeEscape(std::string_view line);

// Text whose characters are all below U+0100, as bytes (Python's latin1), and back. nullopt when one is not.
std::optional<std::string> ToLatin1(std::string_view text);
std::string FromLatin1(std::string_view bytes);

}  // namespace ckptd
#endif  // CKPTD_CLIENT_FORMATS_TEXT_H_
