#include "daemon/engine/run/path_claims.h"

#include <utility>

#include "storage/format/names.h"

namespace ckptd {
namespace {

std::string_view DirectoryOf(std::string_view path) {
  const size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? std::string_view() : path.substr(0, slash);
}

}  // namespace

std::optional<PathClaims::Claim> PathClaims::Find(const std::string& path) const {
  if (const auto file = files_.find(path); file != files_.end()) return Claim{file->second, path};
  if (!below_.empty()) {
    if (const auto file = below_.find(path); file != below_.end()) return file->second;
  }
  // There is a file below this directory, so neither it nor a parent of it is a file.
  if (DirectoryOf(path) == last_directory_) return std::nullopt;
  for (const std::string& parent : ParentDirectories(path)) {
    if (const auto file = files_.find(parent); file != files_.end()) return Claim{file->second, parent};
  }
  return std::nullopt;
}

void PathClaims::Add(std::string_view path, int rank) {
  if (!files_.emplace(path, rank).second) return;
  path_bytes_ += static_cast<int64_t>(path.size());
  const std::string_view directory = DirectoryOf(path);
  if (directory == last_directory_) return;
  for (std::string& parent : ParentDirectories(std::string(path)))
    below_.try_emplace(std::move(parent), Claim{rank, std::string(path)});
  last_directory_ = directory;
}

void PathClaims::Clear() { *this = PathClaims(); }

}  // namespace ckptd
