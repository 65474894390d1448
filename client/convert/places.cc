#include "client/convert/places.h"

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

absl::StatusOr<ConvertPlaces> CheckPlaces(const std::string& input, const std::string& output) {
  if (input.empty() || output.empty()) {
    return MakeError(absl::StatusCode::kInvalidArgument, "INVALID_ARGUMENT",
                     input.empty() ? "--input_dir is empty" : "--output_dir is empty");
  }
  ConvertPlaces places;
  CKPTD_ASSIGN_OR_RETURN(places.input, RealPath(input));
  // Every directory of the input: by a bind mount one of them may be above the output in another place.
  CKPTD_ASSIGN_OR_RETURN(const Identity top, IdentityOf(places.input));
  std::set<Identity> of_input = {top};
  std::error_code error;
  for (std::filesystem::recursive_directory_iterator it(places.input, error), end; !error && it != end;
       it.increment(error)) {
    std::error_code ignored;
    if (!it->is_directory(ignored) || it->is_symlink(ignored)) continue;
    const absl::StatusOr<Identity> identity = IdentityOf(it->path());
    if (identity.ok()) of_input.insert(*identity);
  }
  if (error) return ErrnoError(error.value(), places.input);

  const absl::StatusOr<std::string> existing = RealPath(output);
  std::filesystem::path path(existing.ok() ? *existing : output);
  if (!path.has_filename()) path = path.parent_path();  // It ended with a slash.
  places.name = path.filename();
  if (places.name.empty() || places.name == "." || places.name == "..") {
    return MakeError(absl::StatusCode::kInvalidArgument, "INVALID_ARGUMENT",
                     absl::StrCat("the output ", output, " has no name of its own"));
  }
  const std::string parent = path.has_parent_path() ? path.parent_path().string() : ".";
  const absl::StatusOr<std::string> real_parent = RealPath(parent);
  if (!real_parent.ok())
    return Annotate(real_parent.status(), "the directory that the output is to be in (make it first)");
  places.parent = *real_parent;

  std::filesystem::path above = existing.ok() ? path : std::filesystem::path(places.parent);
  for (;; above = above.parent_path()) {
    const absl::StatusOr<Identity> identity = IdentityOf(above);
    if (identity.ok() && of_input.contains(*identity)) {
      return MakeError(absl::StatusCode::kFailedPrecondition, "OUTPUT_IS_INPUT",
                       absl::StrCat("the output ", output, " is the input ", input, " or lies in it (",
                                    above.string(), "); name another place"));
    }
    if (above == above.parent_path()) return places;
  }
}

}  // namespace ckptd
