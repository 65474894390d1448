#include "client/convert/convert_paths.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/real_path.h"
#include "storage/base/status_macros.h"
#include "storage/format/names.h"

namespace ckptd {
namespace {

using Identity = std::pair<dev_t, ino_t>;

absl::StatusOr<Identity> IdentityOf(const std::string& path) {
  struct stat stat;
  if (::stat(path.c_str(), &stat) != 0) return ErrnoError(errno, path);
  if (!S_ISDIR(stat.st_mode)) return ErrnoError(ENOTDIR, path);
  return Identity(stat.st_dev, stat.st_ino);
}

absl::Status CheckNotEmpty(const std::string& input, const std::string& output) {
  if (!input.empty() && !output.empty()) return absl::OkStatus();
  return InvalidArgument(input.empty() ? "the input's path is empty" : "the output's path is empty");
}

struct Output {
  std::string parent, name;             // As in ConvertPaths.
  std::optional<std::string> existing;  // The output's path, if there is something.
};

absl::StatusOr<Output> ResolveOutput(const std::string& output) {
  const absl::StatusOr<std::string> existing = RealPath(output);
  Output resolved;
  if (existing.ok()) resolved.existing = *existing;
  std::filesystem::path path(existing.ok() ? *existing : output);
  if (!path.has_filename()) path = path.parent_path();  // The path ended with a slash.
  resolved.name = path.filename();
  if (resolved.name.empty() || resolved.name == "." || resolved.name == "..") {
    return InvalidArgument(absl::StrCat("the output ", output, " does not end in a name"));
  }
  const std::string parent = path.has_parent_path() ? path.parent_path().string() : ".";
  const absl::StatusOr<std::string> real_parent = RealPath(parent);
  if (!real_parent.ok())
    return Annotate(real_parent.status(), "the parent directory of the output (make it first)");
  resolved.parent = *real_parent;
  return resolved;
}

}  // namespace

absl::StatusOr<ConvertPaths> ResolveConvertPaths(const std::string& input, const std::string& output) {
  CKPTD_RETURN_IF_ERROR(CheckNotEmpty(input, output));
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

  CKPTD_ASSIGN_OR_RETURN(const Output resolved, ResolveOutput(output));
  paths.parent = resolved.parent;
  paths.name = resolved.name;

  std::filesystem::path above = resolved.existing.value_or(resolved.parent);
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

absl::StatusOr<std::pair<ConvertFile, ConvertPaths>> ResolveConvertFile(const std::string& input,
                                                                        const std::string& output) {
  CKPTD_RETURN_IF_ERROR(CheckNotEmpty(input, output));
  CKPTD_ASSIGN_OR_RETURN(const std::string real, RealPath(input));
  const std::filesystem::path path(real);
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return MakeError(absl::StatusCode::kInvalidArgument, "INVALID_ARGUMENT",
                     absl::StrCat("the input ", input, " is no regular file"));
  }
  ConvertFile file = {.directory = path.parent_path(), .name = path.filename()};
  for (std::filesystem::path above = path.parent_path();; above = above.parent_path()) {
    if (std::filesystem::exists(above / kOurDirectory / kManifestName, error)) {
      file = {.directory = above, .name = path.lexically_relative(above), .is_committed = true};
      CKPTD_ASSIGN_OR_RETURN(ConvertPaths paths, ResolveConvertPaths(file.directory, output));
      paths.input = real;
      return std::pair(std::move(file), std::move(paths));
    }
    if (above == above.parent_path()) break;
  }
  CKPTD_ASSIGN_OR_RETURN(const Output resolved, ResolveOutput(output));
  ConvertPaths paths = {.input = real, .parent = resolved.parent, .name = resolved.name};
  return std::pair(std::move(file), std::move(paths));
}

}  // namespace ckptd
