// Resolves paths.
#ifndef CKPTD_STORAGE_BASE_REAL_PATH_H_
#define CKPTD_STORAGE_BASE_REAL_PATH_H_

#include <string>

#include "absl/status/statusor.h"

namespace ckptd {

// The absolute path without symbolic links and dots. Fails with the kernel's errno if a part does not exist.
absl::StatusOr<std::string> RealPath(const std::string& path);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_BASE_REAL_PATH_H_
