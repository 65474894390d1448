// The removal of a checkpoint on a root that several nodes share, by the run's coordinator.
//
//   1. Open the tag's directory. Everything but step 5 goes through this handle.
//   2. Compare its inode and the sequence of its manifest. Stop if one is not what was decided on.
//   3. Rename `.ckptd` to `.ckptd.removed.<sequence>`, and sync: now it is no checkpoint.
//   4. Remove all other entries, sync, and then `.ckptd.removed.<sequence>`.
//   5. Remove the tag's name, if it is an empty directory, and sync.
//
// A coordinator may be paused before any step, for longer than its lease. Another one then removes the rest
// and publishes another checkpoint at the tag before the first goes on: that one still has the old directory
// open, where nothing is left, and step 5 removes no directory that holds something.
//
// Why `.ckptd` is renamed, and not only the manifest: a coordinator that was paused while it published this
// very checkpoint may go on now, and would rename its manifest to its place (shared_publish.cc, step 1). It
// finds no
// `.ckptd`, which is never made again.
//
// A crash leaves what a pause leaves; the name `.ckptd.removed.<sequence>`, which is removed last, tells
// whose the rest is.
#include "storage/commit/shared/save/shared_removal.h"

#include <cerrno>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/commit/checkpoint/checkpoint_dir.h"
#include "storage/commit/shared/run/look_again.h"
#include "storage/format/names.h"

namespace ckptd {
namespace {

using storage::v1::ManifestSummary;

absl::Status UnlessMissing(const absl::Status& status) {
  return IsMissing(status) ? absl::OkStatus() : status;
}

// Steps 2 and 3. False: the directory is of another checkpoint, or of none.
absl::StatusOr<bool> Unmake(FileSystem& fs, Handle dir, const std::string& tag, int64_t sequence) {
  const absl::StatusOr<ManifestSummary> summary = ReadSummary(fs, dir, "");
  if (summary.ok()) {
    if (summary->tag() != tag || summary->sequence() != sequence) return false;
    CKPTD_RETURN_IF_ERROR(
        UnlessMissing(fs.Rename(dir, kOurDirectory, dir, RemovedName(sequence), RenameMode::kReplace)));
  } else if (!IsMissing(summary.status()) && !IsInTheWay(summary.status())) {
    return summary.status();
  }
  const absl::StatusOr<FileStat> removed = fs.Stat(dir, RemovedName(sequence));
  if (IsMissing(removed.status())) return false;
  CKPTD_RETURN_IF_ERROR(removed.status());
  CKPTD_RETURN_IF_ERROR(fs.Sync(dir, SyncMode::kAll));  // Also if another daemon has renamed it.
  return true;
}

// True if the entry is gone.
absl::StatusOr<bool> RemoveEntry(FileSystem& fs, Handle dir, const DirEntry& entry, RemovalBudget& budget) {
  if (entry.type != FileType::kDirectory) {
    --budget.names;
    CKPTD_RETURN_IF_ERROR(UnlessMissing(fs.Remove(dir, entry.name, entry.type)));
    return true;
  }
  const absl::StatusOr<bool> gone = RemoveTreeWithin(fs, dir, entry.name, budget);
  if (!IsMissing(gone.status())) return gone;
  return IsMissing(fs.Stat(dir, entry.name).status());  // Another daemon removes it, too.
}

// Step 4. True if the directory is empty.
absl::StatusOr<bool> Empty(FileSystem& fs, Handle dir, const std::string& last, RemovalBudget& budget) {
  CKPTD_ASSIGN_OR_RETURN(const std::vector<DirEntry> entries, fs.List(dir));
  for (const DirEntry& entry : entries) {
    if (entry.name == last) continue;
    if (budget.spent()) return false;
    CKPTD_ASSIGN_OR_RETURN(const bool gone, RemoveEntry(fs, dir, entry, budget));
    if (!gone) return false;
  }
  CKPTD_RETURN_IF_ERROR(fs.Sync(dir, SyncMode::kAll));
  return RemoveEntry(fs, dir, {last, FileType::kDirectory}, budget);
}

// Step 5.
absl::Status RemoveName(const SharedLayout& layout, const std::string& tag) {
  const absl::Status removed = layout.fs->Remove(layout.root, tag, FileType::kDirectory);
  const int error = ErrnoOf(removed);
  if (error == ENOTEMPTY || error == EEXIST || error == ENOTDIR) return absl::OkStatus();
  CKPTD_RETURN_IF_ERROR(UnlessMissing(removed));
  return layout.fs->Sync(layout.root, SyncMode::kAll);
}

// A daemon that was killed may have removed it, and not synced that. dir: what is at the tag; -1: no
// directory.
absl::StatusOr<bool> NothingOfIt(const SharedLayout& layout, Handle dir) {
  if (dir >= 0) CKPTD_RETURN_IF_ERROR(layout.fs->Sync(dir, SyncMode::kAll));
  CKPTD_RETURN_IF_ERROR(layout.fs->Sync(layout.root, SyncMode::kAll));
  return true;
}

}  // namespace

absl::StatusOr<bool> RemoveShared(const SharedLayout& layout, const std::string& tag, int64_t sequence,
                                  RemovalBudget& budget, uint64_t inode) {
  FileSystem& fs = *layout.fs;
  const absl::StatusOr<ScopedHandle> dir = OpenScoped(fs, layout.root, tag, OpenMode::kDirectory);
  if (IsMissing(dir.status()) || IsInTheWay(dir.status())) return NothingOfIt(layout, -1);
  CKPTD_RETURN_IF_ERROR(dir.status());
  if (inode != 0) {
    CKPTD_ASSIGN_OR_RETURN(const FileStat found, fs.Stat(dir->get(), ""));
    if (found.inode != inode) return NothingOfIt(layout, dir->get());
  }
  CKPTD_ASSIGN_OR_RETURN(const bool ours, Unmake(fs, dir->get(), tag, sequence));
  if (!ours) {
    // A coordinator that was killed may have left the name of the directory that was decided on.
    if (inode != 0) CKPTD_RETURN_IF_ERROR(RemoveName(layout, tag));
    return NothingOfIt(layout, dir->get());
  }
  CKPTD_ASSIGN_OR_RETURN(const bool empty, Empty(fs, dir->get(), RemovedName(sequence), budget));
  if (!empty) return false;
  CKPTD_RETURN_IF_ERROR(RemoveName(layout, tag));
  return true;
}

absl::StatusOr<uint64_t> InodeOfShared(const SharedLayout& layout, const std::string& tag, int64_t sequence) {
  FileSystem& fs = *layout.fs;
  const std::string what = absl::StrCat("checkpoint ", tag, " of sequence ", sequence);
  const absl::StatusOr<ScopedHandle> dir = OpenScoped(fs, layout.root, tag, OpenMode::kDirectory);
  if (IsMissing(dir.status()) || IsInTheWay(dir.status())) return LookAgain(what, dir.status());
  CKPTD_RETURN_IF_ERROR(dir.status());
  const absl::StatusOr<ManifestSummary> summary = ReadSummary(fs, dir->get(), "");
  if (IsMissing(summary.status())) return LookAgain(what, summary.status());
  CKPTD_RETURN_IF_ERROR(summary.status());
  if (summary->tag() != tag || summary->sequence() != sequence)
    return LookAgain(what, absl::StrCat("its directory holds sequence ", summary->sequence()));
  CKPTD_ASSIGN_OR_RETURN(const FileStat found, fs.Stat(dir->get(), ""));
  return found.inode;
}

absl::StatusOr<int64_t> SequenceBeingRemoved(const SharedLayout& layout, const std::string& tag) {
  const absl::StatusOr<ScopedHandle> dir = OpenScoped(*layout.fs, layout.root, tag, OpenMode::kDirectory);
  if (IsMissing(dir.status()) || IsInTheWay(dir.status())) return 0;
  CKPTD_RETURN_IF_ERROR(dir.status());
  CKPTD_ASSIGN_OR_RETURN(const std::vector<DirEntry> entries, layout.fs->List(dir->get()));
  for (const DirEntry& entry : entries) {
    if (entry.type != FileType::kDirectory) continue;
    if (const std::optional<int64_t> sequence = ParseRemovedName(entry.name)) return *sequence;
  }
  return 0;
}

}  // namespace ckptd
