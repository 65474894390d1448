#include "daemon/upload/upload_rights.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"
#include "storage/base/status_macros.h"
#include "storage/object/bucket_url.h"

namespace ckptd {
namespace {

bool IsBeneath(const BucketUrl& url, const BucketUrl& allowed) {
  return url.bucket == allowed.bucket && (allowed.prefix.empty() || url.prefix == allowed.prefix ||
                                          absl::StartsWith(url.prefix, allowed.prefix + "/"));
}

}  // namespace

absl::Status CheckUpload(const UploadRights& rights, uid_t uid, const std::string& url) {
  CKPTD_ASSIGN_OR_RETURN(const BucketUrl asked, ParseBucketUrl(url));
  // A server may resolve such names, so that the object lies elsewhere than its key says.
  for (const absl::string_view name : absl::StrSplit(asked.prefix, '/')) {
    if (name == "." || name == "..")
      return InvalidArgument(absl::StrCat("the URL ", url, " has a component \"", name, "\"; remove it"));
  }
  if (rights.allows_all) return absl::OkStatus();
  for (const std::string& prefix : rights.prefixes) {
    const std::string of_user = absl::StrReplaceAll(prefix, {{"{uid}", absl::StrCat(uid)}});
    CKPTD_ASSIGN_OR_RETURN(const BucketUrl allowed, ParseBucketUrl(of_user));
    if (IsBeneath(asked, allowed)) return absl::OkStatus();
  }
  return MakeError(
      absl::StatusCode::kPermissionDenied, reason::kUploadNotAllowed,
      absl::StrCat("this daemon does not write to ", url, " for user ", uid,
                   ": the prefixes of its configuration are ",
                   rights.prefixes.empty() ? "none" : absl::StrJoin(rights.prefixes, ", "),
                   "; ask its operator for upload { allowed_prefixes: \"s3://BUCKET/PREFIX\" }, or "
                   "use a private daemon"));
}

}  // namespace ckptd
