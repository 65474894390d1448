#include "storage/object/bucket_url.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "storage/base/errors.h"

namespace ckptd {
namespace {

constexpr absl::string_view kScheme = "s3://";

bool IsBucketCharacter(char c) {
  return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '-' || c == '.' || c == '_';
}

}  // namespace

bool IsBucketUrl(const std::string& text) { return absl::StartsWith(text, kScheme); }

absl::StatusOr<BucketUrl> ParseBucketUrl(const std::string& text) {
  absl::string_view rest = text;
  if (!absl::ConsumePrefix(&rest, kScheme))
    return InvalidArgument(absl::StrCat("\"", text, "\" is no URL of a bucket: it must begin with s3://"));
  const size_t slash = std::min(rest.find('/'), rest.size());
  BucketUrl url{std::string(rest.substr(0, slash)), std::string(rest.substr(slash))};
  if (url.bucket.size() < 3 || url.bucket.size() > 63 ||
      !std::all_of(url.bucket.begin(), url.bucket.end(), IsBucketCharacter)) {
    return InvalidArgument(absl::StrCat("\"", url.bucket, "\" in ", text,
                                        " is no name of a bucket: 3 to 63 lower-case letters, digits, '-' "
                                        "and '.' (s3://BUCKET/PREFIX)"));
  }
  if (absl::StrContains(url.prefix, "//")) {
    return InvalidArgument(absl::StrCat(text, " has an empty name between two slashes"));
  }
  url.prefix = std::string(absl::StripSuffix(absl::StripPrefix(url.prefix, "/"), "/"));
  return url;
}

}  // namespace ckptd
