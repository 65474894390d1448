#include "storage/object/url_encoding.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"

namespace ckptd {

std::string UrlEncode(std::string_view text, std::string_view kept) {
  constexpr std::string_view kUnreserved = "-._~";
  std::string out;
  for (const char c : text) {
    if (absl::ascii_isalnum(static_cast<unsigned char>(c)) || kUnreserved.find(c) != kUnreserved.npos ||
        kept.find(c) != kept.npos) {
      out += c;
    } else {
      absl::StrAppendFormat(&out, "%%%02X", static_cast<unsigned char>(c));
    }
  }
  return out;
}

}  // namespace ckptd
