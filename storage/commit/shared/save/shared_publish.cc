// The commit on a root that several nodes share, by the run's coordinator. The ledger has decided that the
// save is published, before any of these steps; it is told COMMITTED after the last.
//
//   1. Write the manifest under a name with the coordinator's term, sync it, rename it to `manifest`.
//   2. Sync every directory of the tree.
//   3. Rename the in-flight directory to its tag, which is missing or an empty directory: the commit point.
//      Sync both parents.
//   3'. If something is at the tag that the save may not replace: rename the in-flight directory into trash,
//   sync, and only then fail.
//
// A coordinator may be paused before any step, for longer than its lease; another one then does all of them,
// and perhaps removes the checkpoint again, before the first goes on. That does no harm:
//
//   - Step 1 goes through the open directory, by the path `.ckptd/...`. Both write the same bytes, under
//     names of their own, and a rename replaces the manifest by an equal one. A removal renames `.ckptd` first
//     (shared_removal.h), so a late step 1 finds no place for its manifest and makes nothing whole again.
//   - The manifest has the pointers of the checkpoint that the ledger says is replaced. While another one has
//     the tag, step 1 is not taken. If the file system shows that one only at the rename of step 3, the
//     coordinator decides again and writes the manifest a second time. A coordinator that was paused in step 1
//     before that may then restore the first manifest: the checkpoint is whole, and lacks those pointers.
//   - Of the renames out of the in-flight name, to the tag or into trash, one succeeds: the name is used once.
//   - A plain rename replaces an empty directory, and nothing else.
//
// No rename flags: not every shared file system has them.
#include "storage/commit/shared/save/shared_publish.h"

#include <cerrno>
#include <vector>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/commit/checkpoint/checkpoint_dir.h"
#include "storage/commit/checkpoint/checkpoint_tree.h"
#include "storage/commit/checkpoint/scan.h"
#include "storage/commit/shared/save/shared_removal.h"
#include "storage/commit/steps/commit_rules.h"
#include "storage/format/names.h"

namespace ckptd {
namespace {

using storage::v1::FileRecord;
using storage::v1::ManifestSummary;

absl::Status SyncParents(const SharedLayout& layout, Handle new_parent) {
  CKPTD_RETURN_IF_ERROR(layout.fs->Sync(new_parent, SyncMode::kAll));
  return layout.fs->Sync(layout.inflight.get(), SyncMode::kAll);
}

// The sequence of the whole checkpoint at this tag; 0: there is none, or it is not ckptd's.
absl::StatusOr<int64_t> SequenceAtTag(const SharedLayout& layout, const std::string& tag) {
  const absl::StatusOr<ManifestSummary> summary = ReadSummary(*layout.fs, layout.root, tag);
  if (CouldNotFindOut(summary.status())) return summary.status();
  return summary.ok() && summary->tag() == tag ? summary->sequence() : 0;
}

absl::StatusOr<bool> Exists(FileSystem& fs, Handle dir, const std::string& name) {
  const absl::StatusOr<FileStat> found = fs.Stat(dir, name);
  if (!found.ok() && !IsMissing(found.status())) return found.status();
  return found.ok();
}

// Step 1. What an earlier try of this term has left is replaced.
absl::Status WriteManifestOfTerm(FileSystem& fs, Handle dir, const std::string& bytes, int64_t term) {
  const std::string own = OurPath("", absl::StrCat(std::string(kManifestName), ".", term));
  const absl::Status removed = fs.Remove(dir, own, FileType::kRegular);
  if (!removed.ok() && !IsMissing(removed)) return removed;
  CKPTD_RETURN_IF_ERROR(WriteNewFile(fs, dir, own, bytes));
  return fs.Rename(dir, own, dir, OurPath("", std::string(kManifestName)), RenameMode::kReplace);
}

// Step 2.
absl::Status SyncTree(FileSystem& fs, Handle dir, const Manifest& manifest) {
  std::vector<std::string> paths = {OurPath("", std::string(kManifestName))};
  for (const FileRecord& file : manifest.body.files()) paths.push_back(file.path());
  return SyncDirectories(fs, dir, paths);
}

// Step 3'.
absl::Status GiveUp(const SharedLayout& layout, const SharedInflight& save, const absl::Status& why) {
  CKPTD_RETURN_IF_ERROR(layout.fs->Rename(layout.inflight.get(), save.name, layout.trash.get(), save.name,
                                          RenameMode::kReplace));
  CKPTD_RETURN_IF_ERROR(SyncParents(layout, layout.trash.get()));
  return why;
}

// Something else has the place of the save: returns what PublishShared does then.
absl::StatusOr<int64_t> Refused(const SharedLayout& layout, const SharedInflight& save,
                                const ManifestSummary& summary, const std::set<int64_t>& pinned) {
  CKPTD_ASSIGN_OR_RETURN(const int64_t half_removed, SequenceBeingRemoved(layout, save.tag));
  if (half_removed != 0) return half_removed;
  CKPTD_ASSIGN_OR_RETURN(const Target target, InspectTarget(*layout.fs, layout.root, save.tag));
  const int64_t there = target.kind == TargetKind::kCheckpoint ? target.summary.sequence() : 0;
  if (there != save.sequence) {
    const absl::Status refused = CheckMayReplace(target, pinned.contains(there), summary);
    if (!refused.ok()) return GiveUp(layout, save, refused);
    if (there != 0) return there;
  }
  return absl::AbortedError(absl::StrCat(save.tag, " changes while ", save.name, " is renamed to it"));
}

}  // namespace

absl::StatusOr<SharedPlace> FindShared(const SharedLayout& layout, const SharedInflight& save) {
  CKPTD_ASSIGN_OR_RETURN(const int64_t at_tag, SequenceAtTag(layout, save.tag));
  if (at_tag == save.sequence) {
    CKPTD_RETURN_IF_ERROR(SyncParents(layout, layout.root));
    return SharedPlace::kPublished;
  }
  CKPTD_ASSIGN_OR_RETURN(const bool in_flight, Exists(*layout.fs, layout.inflight.get(), save.name));
  if (in_flight) return SharedPlace::kInFlight;
  CKPTD_ASSIGN_OR_RETURN(const bool in_trash, Exists(*layout.fs, layout.trash.get(), save.name));
  if (!in_trash) {
    CKPTD_ASSIGN_OR_RETURN(const RootScan scan, ScanRoot(*layout.fs, layout.root));
    const bool younger = !scan.checkpoints.empty() && scan.checkpoints.rbegin()->first > save.sequence;
    return younger ? SharedPlace::kSuperseded : SharedPlace::kNowhere;
  }
  CKPTD_RETURN_IF_ERROR(SyncParents(layout, layout.trash.get()));
  return SharedPlace::kInTrash;
}

absl::StatusOr<int64_t> PublishShared(const SharedLayout& layout, const SharedInflight& save,
                                      const Manifest& manifest, int64_t term, int64_t replaces,
                                      const std::set<int64_t>& pinned) {
  FileSystem& fs = *layout.fs;
  CKPTD_ASSIGN_OR_RETURN(const std::string bytes, EncodeManifest(manifest));
  CKPTD_ASSIGN_OR_RETURN(const int64_t at_tag, SequenceAtTag(layout, save.tag));
  if (at_tag == save.sequence) {
    CKPTD_RETURN_IF_ERROR(SyncParents(layout, layout.root));
    return 0;
  }
  if (at_tag != 0 && at_tag != replaces) return Refused(layout, save, manifest.summary, pinned);
  {
    CKPTD_ASSIGN_OR_RETURN(const ScopedHandle dir,
                           OpenScoped(fs, layout.inflight.get(), save.name, OpenMode::kDirectory));
    CKPTD_RETURN_IF_ERROR(CheckFiles(fs, dir.get(), manifest.body.files()));
    CKPTD_RETURN_IF_ERROR(WriteManifestOfTerm(fs, dir.get(), bytes, term));
    CKPTD_RETURN_IF_ERROR(SyncTree(fs, dir.get(), manifest));
  }
  const absl::Status renamed =
      fs.Rename(layout.inflight.get(), save.name, layout.root, save.tag, RenameMode::kReplace);
  const int error = ErrnoOf(renamed);
  if (error == EEXIST || error == ENOTEMPTY || error == ENOTDIR)
    return Refused(layout, save, manifest.summary, pinned);
  CKPTD_RETURN_IF_ERROR(renamed);
  CKPTD_RETURN_IF_ERROR(SyncParents(layout, layout.root));
  return 0;
}

}  // namespace ckptd
