#include "storage/commit/checkpoint/checkpoint_tree.h"

#include <functional>
#include <optional>
#include <set>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/format/names.h"

namespace ckptd {
namespace {

absl::Status MakeDirOnce(FileSystem& fs, Handle dir, const std::string& path) {
  CKPTD_ASSIGN_OR_RETURN(const std::optional<FileStat> found, MakeDirOrStat(fs, dir, path));
  if (!found.has_value() || found->type == FileType::kDirectory) return absl::OkStatus();
  return MakeError(absl::StatusCode::kAlreadyExists, "FILE_CONFLICT",
                   absl::StrCat(path, " is a file of this checkpoint and the directory of another one"),
                   {{"path", path}});
}

}  // namespace

absl::Status MakeParents(FileSystem& fs, Handle dir, const std::vector<std::string>& paths) {
  std::set<std::string> parents;  // Sorted, so that every directory comes after the one above it.
  for (const std::string& path : paths) {
    CKPTD_RETURN_IF_ERROR(CheckFilePath(path));
    for (std::string& parent : ParentDirectories(path)) parents.insert(std::move(parent));
  }
  for (const std::string& parent : parents) CKPTD_RETURN_IF_ERROR(MakeDirOnce(fs, dir, parent));
  return absl::OkStatus();
}

absl::Status SyncDirectories(FileSystem& fs, Handle dir, const std::vector<std::string>& paths) {
  std::set<std::string, std::greater<>> parents;
  for (const std::string& path : paths) {
    for (std::string& parent : ParentDirectories(path)) parents.insert(std::move(parent));
  }
  for (const std::string& path : parents) {
    CKPTD_ASSIGN_OR_RETURN(const ScopedHandle parent, OpenScoped(fs, dir, path, OpenMode::kDirectory));
    CKPTD_RETURN_IF_ERROR(fs.Sync(parent.get(), SyncMode::kAll));
  }
  return fs.Sync(dir, SyncMode::kAll);
}

}  // namespace ckptd
