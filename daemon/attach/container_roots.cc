#include "daemon/attach/container_roots.h"

#include <filesystem>
#include <memory>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/base/unique_fd.h"

namespace ckptd {
namespace {

// Returns the path without trailing slashes; "" for "/".
std::string_view Trimmed(std::string_view path) {
  while (path.ends_with('/')) path.remove_suffix(1);
  return path;
}

bool IsPlain(std::string_view path) {
  if (!path.starts_with('/') || path.find('\0') != std::string_view::npos) return false;
  return std::filesystem::path(path).lexically_normal().native() == path;
}

}  // namespace

std::optional<std::string> ContainerRootOf(const std::vector<std::string>& allowed, const std::string& path) {
  if (!IsPlain(path)) return std::nullopt;
  for (const std::string& base : allowed) {
    const std::string_view above = Trimmed(base), below = Trimmed(path);
    if (below == above || below.starts_with(absl::StrCat(std::string(above), "/"))) return base;
  }
  return std::nullopt;
}

absl::StatusOr<Handle> OpenDirectoryBeneath(const std::string& base, const std::string& path,
                                            const FileUser& user) {
  CKPTD_ASSIGN_OR_RETURN(const Handle opened, OpenRootDirectory(base, user));
  UniqueFd directory(opened);
  const std::string_view above = Trimmed(base), below = Trimmed(path);
  if (below == above) return directory.release();
  CKPTD_ASSIGN_OR_RETURN(const std::unique_ptr<FileSystem> fs, MakePosixFileSystem(user));
  absl::StatusOr<Handle> found =
      fs->Open(directory.get(), below.substr(above.size() + 1), OpenMode::kDirectory);
  if (!found.ok()) return Annotate(found.status(), absl::StrCat("opening directory ", path));
  return found;
}

}  // namespace ckptd
