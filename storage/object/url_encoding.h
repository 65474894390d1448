// Percent-encoding as AWS Signature Version 4 wants it.
#ifndef CKPTD_STORAGE_OBJECT_URL_ENCODING_H_
#define CKPTD_STORAGE_OBJECT_URL_ENCODING_H_

#include <string>
#include <string_view>

namespace ckptd {

// Leaves letters, digits and -._~ as they are, and what is in `kept`.
std::string UrlEncode(std::string_view text, std::string_view kept = "");

}  // namespace ckptd
#endif  // CKPTD_STORAGE_OBJECT_URL_ENCODING_H_
