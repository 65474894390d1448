// Where a path really leads.
#ifndef CKPTD_STORAGE_BASE_REAL_PATH_H_
#define CKPTD_STORAGE_BASE_REAL_PATH_H_

#include <string>

#include "absl/status/statusor.h"

namespace ckptd {

// Absolute, without links and dots. The errno of the kernel when something on the way is not there.
absl::StatusOr<std::string> RealPath(const std::string& path);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_BASE_REAL_PATH_H_
