#include "storage/commit/local/layout.h"

#include <random>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/commit/steps/records.h"
#include "storage/format/names.h"

namespace ckptd {
namespace {

absl::Status MakeNodeDirectory(FileSystem& fs, Handle root, const std::string& path) {
  const absl::Status made = MakeDirsDurably(fs, root, path);
  const std::string reason = ReasonOf(made);
  if (reason == "EACCES" || reason == "EPERM" || reason == "EROFS") {
    return MakeError(absl::StatusCode::kFailedPrecondition, "ROOT_UNSUITABLE",
                     absl::StrCat("the root may not be written (", std::string(made.message()),
                                  "): give the user of the run write access to it"));
  }
  return made.ok() ? made : Annotate(made, absl::StrCat("making ", path, " in the root"));
}

// Existing directories may have been made by a daemon that died before it synced them.
absl::Status SyncOldDirectories(const Layout& layout) {
  CKPTD_ASSIGN_OR_RETURN(const ScopedHandle nodes,
                         OpenScoped(*layout.fs, layout.ours.get(), kNodesDirectory, OpenMode::kDirectory));
  CKPTD_RETURN_IF_ERROR(layout.fs->Sync(nodes.get(), SyncMode::kAll));
  return layout.fs->Sync(layout.ours.get(), SyncMode::kAll);
}

absl::StatusOr<ScopedHandle> TakeLock(FileSystem& fs, Handle node, const std::string& node_path) {
  CKPTD_ASSIGN_OR_RETURN(ScopedHandle lock, OpenScoped(fs, node, kLockName, OpenMode::kLock));
  const absl::Status locked = fs.Lock(lock.get());
  if (locked.ok()) return lock;
  if (ReasonOf(locked) != "LOCKED")
    return Annotate(locked, absl::StrCat("locking ", node_path, "/lock in the root"));
  const absl::StatusOr<std::optional<storage::v1::RunRecord>> run = LoadRunRecord(fs, node, node_path);
  const std::string root =
      run.ok() && run->has_value() && !(*run)->path().empty() ? (*run)->path() : "this root";
  return MakeError(absl::StatusCode::kFailedPrecondition, "ROOT_LOCKED",
                   absl::StrCat("another daemon holds ", root, " (", node_path,
                                "/lock is locked); use that daemon, or stop it first"));
}

}  // namespace

absl::StatusOr<Layout> OpenLayout(FileSystem* fs, Handle root, const std::string& node) {
  if (const absl::Status name = CheckTag(node); !name.ok()) {
    return InvalidArgument(
        absl::StrCat("the node's name must be one that a tag may have: ", std::string(name.message())));
  }
  Layout layout;
  layout.fs = fs;
  layout.root = root;
  layout.node_path = NodeDirectory(node);
  CKPTD_RETURN_IF_ERROR(MakeNodeDirectory(*fs, root, layout.node_path));
  CKPTD_ASSIGN_OR_RETURN(layout.ours, OpenScoped(*fs, root, kOurDirectory, OpenMode::kDirectory));
  CKPTD_ASSIGN_OR_RETURN(layout.node, OpenScoped(*fs, root, layout.node_path, OpenMode::kDirectory));
  CKPTD_RETURN_IF_ERROR(SyncOldDirectories(layout));
  CKPTD_ASSIGN_OR_RETURN(layout.lock, TakeLock(*fs, layout.node.get(), layout.node_path));
  for (const std::string_view name : {kInflightDirectory, kTrashDirectory}) {
    CKPTD_RETURN_IF_ERROR(MakeDirsDurably(*fs, layout.node.get(), name));
  }
  CKPTD_ASSIGN_OR_RETURN(layout.inflight,
                         OpenScoped(*fs, layout.node.get(), kInflightDirectory, OpenMode::kDirectory));
  CKPTD_ASSIGN_OR_RETURN(layout.trash,
                         OpenScoped(*fs, layout.node.get(), kTrashDirectory, OpenMode::kDirectory));
  return layout;
}

absl::Status SyncNames(const Layout& layout) {
  for (const Handle dir : {layout.root, layout.inflight.get(), layout.trash.get(), layout.node.get()}) {
    CKPTD_RETURN_IF_ERROR(layout.fs->Sync(dir, SyncMode::kAll));
  }
  return absl::OkStatus();
}

std::string FreshName(const std::string& tag, int64_t sequence) {
  std::random_device random;
  const uint64_t high = random();
  return InflightName(tag, sequence, high << 32 | random());
}

}  // namespace ckptd
