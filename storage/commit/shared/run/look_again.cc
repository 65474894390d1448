#include "storage/commit/shared/run/look_again.h"

#include <cerrno>
#include <string>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"

namespace ckptd {

absl::Status LookAgain(std::string_view what, std::string_view why) {
  return MakeError(
      absl::StatusCode::kUnavailable, kLookAgain,
      absl::StrCat(std::string(what), " cannot be seen yet, or not any more: ", std::string(why)));
}

absl::Status LookAgain(std::string_view what, const absl::Status& why) {
  return LookAgain(what, std::string(why.message()));
}

bool MayBeAnothersChange(const absl::Status& status) {
  const int error = ErrnoOf(status);
  return error == ENOENT || error == ESTALE;
}

}  // namespace ckptd
