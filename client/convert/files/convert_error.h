// The error for input that cannot be converted without loss.
#ifndef CKPTD_CLIENT_CONVERT_FILES_CONVERT_ERROR_H_
#define CKPTD_CLIENT_CONVERT_FILES_CONVERT_ERROR_H_

#include <string_view>

#include "absl/status/status.h"
#include "storage/base/errors.h"

namespace ckptd {

// FAILED_PRECONDITION, reason CANNOT_CONVERT.
inline absl::Status CannotConvert(std::string_view why) {
  return MakeError(absl::StatusCode::kFailedPrecondition, "CANNOT_CONVERT", why);
}

}  // namespace ckptd
#endif  // CKPTD_CLIENT_CONVERT_FILES_CONVERT_ERROR_H_
