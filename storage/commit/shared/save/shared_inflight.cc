// Why no name comes back:
//
//   - A name is drawn by the call that makes its directory, and no other call makes a directory of that name:
//     not a member, not the next coordinator, not a second try. The ledger gets the name when the directory
//     is durable. If the ledger got it before, a coordinator that was paused before its mkdir could make the
//     directory again after the save was published, given up or removed.
//   - So each name is in flight once: a rename to its tag or into the trash ends it, and of two such renames
//     one succeeds. A daemon that was paused before its own rename finds nothing to rename.
//   - A daemon that is told to discard a save, or to remove it from the trash, knows from the ledger that it has
//     ended, and an end is for good. So that daemon may be paused, too, for any time.
#include "storage/commit/shared/save/shared_inflight.h"

#include <cerrno>
#include <optional>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/commit/checkpoint/checkpoint_dir.h"
#include "storage/commit/shared/run/look_again.h"
#include "storage/format/names.h"

namespace ckptd {
namespace {

uint64_t RandomNumber() {
  std::random_device random;
  const uint64_t high = random();
  return high << 32 | random();
}

absl::Status MakeInflight(const SharedLayout& layout, const std::string& name) {
  FileSystem& fs = *layout.fs;
  CKPTD_RETURN_IF_ERROR(fs.MakeDir(layout.inflight.get(), name));
  CKPTD_ASSIGN_OR_RETURN(const ScopedHandle dir,
                         OpenScoped(fs, layout.inflight.get(), name, OpenMode::kDirectory));
  CKPTD_RETURN_IF_ERROR(fs.MakeDir(dir.get(), kOurDirectory));
  CKPTD_RETURN_IF_ERROR(fs.Sync(dir.get(), SyncMode::kAll));
  return fs.Sync(layout.inflight.get(), SyncMode::kAll);
}

absl::Status CheckInflightName(const std::string& name) {
  if (ParseInflightName(name).has_value()) return absl::OkStatus();
  return InvalidArgument(absl::StrCat(name, " is not the name of a save in flight"));
}

absl::StatusOr<std::vector<SharedInflight>> ListSaves(FileSystem& fs, Handle dir) {
  CKPTD_ASSIGN_OR_RETURN(const std::vector<DirEntry> entries, fs.List(dir));
  std::vector<SharedInflight> saves;
  for (const DirEntry& entry : entries) {
    const std::optional<InflightId> id = ParseInflightName(entry.name);
    if (id.has_value() && entry.type == FileType::kDirectory)
      saves.push_back({id->tag, id->sequence, entry.name});
  }
  return saves;
}

}  // namespace

absl::StatusOr<SharedInflight> MakeSharedInflight(const SharedLayout& layout, const std::string& tag,
                                                  int64_t sequence) {
  CKPTD_RETURN_IF_ERROR(CheckTag(tag));
  if (sequence < 1) return InvalidArgument(absl::StrCat("sequence ", sequence, "; sequences begin at 1"));
  const SharedInflight save{tag, sequence, InflightName(tag, sequence, RandomNumber())};
  const absl::Status made = MakeInflight(layout, save.name);
  if (made.ok()) return save;
  // Best effort: no other daemon knows the name, and the next sweep discards what the ledger does not name.
  RemoveTree(*layout.fs, layout.inflight.get(), save.name).IgnoreError();
  return Annotate(made, absl::StrCat("preparing ", tag));
}

absl::StatusOr<ScopedHandle> OpenSharedInflight(const SharedLayout& layout, const SharedInflight& save) {
  CKPTD_RETURN_IF_ERROR(CheckInflightName(save.name));
  absl::StatusOr<ScopedHandle> dir =
      OpenScoped(*layout.fs, layout.inflight.get(), save.name, OpenMode::kDirectory);
  if (!MayBeAnothersChange(dir.status())) return dir;
  return LookAgain(absl::StrCat("the directory of ", save.tag, " in flight, ", save.name), dir.status());
}

absl::StatusOr<std::vector<SharedInflight>> ListInFlight(const SharedLayout& layout) {
  return ListSaves(*layout.fs, layout.inflight.get());
}

absl::StatusOr<std::vector<SharedInflight>> ListInTrash(const SharedLayout& layout) {
  return ListSaves(*layout.fs, layout.trash.get());
}

absl::Status DiscardShared(const SharedLayout& layout, const std::string& name) {
  CKPTD_RETURN_IF_ERROR(CheckInflightName(name));
  FileSystem& fs = *layout.fs;
  const absl::Status renamed =
      fs.Rename(layout.inflight.get(), name, layout.trash.get(), name, RenameMode::kReplace);
  if (!renamed.ok() && !IsMissing(renamed)) return Annotate(renamed, absl::StrCat("discarding ", name));
  // Also if another daemon has moved it, which may have been killed before it synced that.
  CKPTD_RETURN_IF_ERROR(fs.Sync(layout.trash.get(), SyncMode::kAll));
  return fs.Sync(layout.inflight.get(), SyncMode::kAll);
}

absl::StatusOr<bool> RemoveFromSharedTrash(const SharedLayout& layout, const std::string& name,
                                           RemovalBudget& budget) {
  CKPTD_RETURN_IF_ERROR(CheckInflightName(name));
  const absl::StatusOr<bool> gone = RemoveTreeWithin(*layout.fs, layout.trash.get(), name, budget);
  if (!IsMissing(gone.status())) return gone;
  // It is gone, or another daemon has removed something in it since this one listed it.
  const absl::StatusOr<FileStat> left = layout.fs->Stat(layout.trash.get(), name);
  if (left.ok()) return false;
  if (IsMissing(left.status())) return true;
  return left.status();
}

}  // namespace ckptd
