#include "client/convert/convert_paths.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/real_path.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

using Identity = std::pair<dev_t, ino_t>;

absl::StatusOr<Identity> IdentityOf(const std::string& path) {
  struct stat stat;
  if (::stat(path.c_str(), &stat) != 0) return ErrnoError(errno, path);
  if (!S_ISDIR(stat.st_mode)) return ErrnoError(ENOTDIR, path);
  return Identity(stat.st_dev, stat.st_ino);
}

}  // namespace

absl::StatusOr<ConvertPaths> ResolveConvertPaths(const std::string& input, const std::string& output) {
  if (input.empty() || output.empty()) {
    return InvalidArgument(input.empty() ? "the input's path is empty" : "the output's path is empty");
  }
  ConvertPaths paths;
  CKPTD_ASSIGN_OR_RETURN(paths.input, RealPath(input));
  // Collect every directory of the input: a bind mount may make any of them a parent of the output.
  CKPTD_ASSIGN_OR_RETURN(const Identity top, IdentityOf(paths.input));
  std::set<Identity> of_input = {top};
  std::error_code error;
  for (std::filesystem::recursive_directory_iterator it(paths.input, error), end; !error && it != end;
       it.increment(error)) {
    std::error_code ignored;
    if (!it->is_directory(ignored) || it->is_symlink(ignored)) continue;
    const absl::StatusOr<Identity> identity = IdentityOf(it->path());
    if (identity.ok()) of_input.insert(*identity);
  }
  if (error) return ErrnoError(error.value(), paths.input);

  const absl::StatusOr<std::string> existing = RealPath(output);
  std::filesystem::path path(existing.ok() ? *existing : output);
  if (!path.has_filename()) path = path.parent_path();  // The path ended with a slash.
  paths.name = path.filename();
  if (paths.name.empty() || paths.name == "." || paths.name == "..") {
    return InvalidArgument(absl::StrCat("the output ", output, " does not end in a directory's name"));
  }
  const std::string parent = path.has_parent_path() ? path.parent_path().string() : ".";
  const absl::StatusOr<std::string> real_parent = RealPath(parent);
  if (!real_parent.ok())
    return Annotate(real_parent.status(), "the parent directory of the output (make it first)");
  paths.parent = *real_parent;

  std::filesystem::path above = existing.ok() ? path : std::filesystem::path(paths.parent);
  for (;; above = above.parent_path()) {
    const absl::StatusOr<Identity> identity = IdentityOf(above);
    if (identity.ok() && of_input.contains(*identity)) {
      return MakeError(absl::StatusCode::kFailedPrecondition, "OUTPUT_IS_INPUT",
                       absl::StrCat("the output ", output, " is the input ", input, " or inside it (",
                                    above.string(), "); choose another output"));
    }
    if (above == above.parent_path()) return paths;
  }
}

}  // namespace ckptd
