#include "storage/base/real_path.h"

#include <filesystem>
#include <system_error>

#include "storage/base/errors.h"

namespace ckptd {

absl::StatusOr<std::string> RealPath(const std::string& path) {
  std::error_code error;
  const std::filesystem::path real = std::filesystem::canonical(path, error);
  if (error) return ErrnoError(error.value(), path);
  return real.string();
}

}  // namespace ckptd
