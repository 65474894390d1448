#include "storage/commit/steps/root_sharing.h"

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"
#include "storage/base/status_macros.h"
#include "storage/commit/checkpoint/checkpoint_dir.h"
#include "storage/format/names.h"

namespace ckptd {
namespace {

std::string InOurs(std::string_view directory) {
  return absl::StrCat(std::string(kOurDirectory), "/", std::string(directory));
}

absl::StatusOr<bool> Exists(FileSystem& fs, Handle root, const std::string& path) {
  const absl::StatusOr<FileStat> found = fs.Stat(root, path);
  if (IsMissing(found.status())) return false;
  CKPTD_RETURN_IF_ERROR(found.status());
  return true;
}

// The lock ends with the handle. A file system without locks tells nothing.
absl::Status CheckUnlocked(FileSystem& fs, Handle root, const std::string& lock) {
  CKPTD_ASSIGN_OR_RETURN(const bool exists, Exists(fs, root, lock));
  if (!exists) return absl::OkStatus();
  CKPTD_ASSIGN_OR_RETURN(const ScopedHandle file, OpenScoped(fs, root, lock, OpenMode::kLock));
  if (ReasonOf(fs.Lock(file.get())) != reason::kLocked) return absl::OkStatus();
  return MakeError(
      absl::StatusCode::kFailedPrecondition, reason::kRootLocked,
      absl::StrCat("a daemon has this root open for its own node alone (", lock,
                   " is locked), and it is in a folder that several nodes share; restart that daemon "
                   "with the same cluster.shared_folders"));
}

absl::Status CheckNode(FileSystem& fs, Handle root, const std::string& directory) {
  const std::string record = absl::StrCat(directory, "/", std::string(kRunName));
  CKPTD_ASSIGN_OR_RETURN(const bool used, Exists(fs, root, record));
  if (!used) return CheckUnlocked(fs, root, absl::StrCat(directory, "/", std::string(kLockName)));
  return MakeError(
      absl::StatusCode::kFailedPrecondition, reason::kRootSharingChanged,
      absl::StrCat(
          "one node has used this root alone (", record,
          " is there), and it is in a folder that several nodes share now, which would not see that node's "
          "pins and retention. For a run of several nodes take another directory in that folder, and move "
          "the checkpoints there, each with all that is in its directory; to go on with one node, take the "
          "folder out of cluster.shared_folders"));
}

}  // namespace

absl::Status CheckNotShared(FileSystem& fs, Handle root) {
  const std::string id = absl::StrCat(InOurs(kSharedDirectory), "/", std::string(kRunDirectory));
  CKPTD_ASSIGN_OR_RETURN(const bool shared, Exists(fs, root, id));
  if (!shared) return absl::OkStatus();
  return MakeError(
      absl::StatusCode::kFailedPrecondition, reason::kRootSharingChanged,
      absl::StrCat("several nodes share this root (", id,
                   " is there), and this daemon would take it for its own. Write into the daemon's "
                   "configuration cluster { etcd_endpoints: ... shared_folders: ... }, with the folder of this "
                   "root, or save into another directory"));
}

absl::Status CheckNotOfOneNode(FileSystem& fs, Handle root) {
  const std::string nodes = InOurs(kNodesDirectory);
  const absl::StatusOr<ScopedHandle> dir = OpenScoped(fs, root, nodes, OpenMode::kDirectory);
  if (IsMissing(dir.status())) return absl::OkStatus();
  CKPTD_RETURN_IF_ERROR(dir.status());
  CKPTD_ASSIGN_OR_RETURN(const std::vector<DirEntry> entries, fs.List(dir->get()));
  for (const DirEntry& entry : entries) {
    if (entry.type != FileType::kDirectory) continue;
    CKPTD_RETURN_IF_ERROR(CheckNode(fs, root, absl::StrCat(nodes, "/", entry.name)));
  }
  return absl::OkStatus();
}

}  // namespace ckptd
