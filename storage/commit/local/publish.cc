// The commit, from the moment when every part is on disk.
//
// On entry (steps 1 to 3) every file of every part is written, cut to size and synced, and so is every part
// record.
//
//   4a. Make the manifest from the parts, check it, write it over its allocated space, and sync it.
//   4b. Sync every directory of the tree. Now everything beneath the in-flight name is durable.
//   5.  Rename the directory to its tag: the commit point. Before it the checkpoint is invisible, after it
//       whole.
//       - If the name is free: rename without replacing.
//       - Over an empty directory: a plain rename, which replaces an empty directory and refuses any other.
//       - Over ckptd's own checkpoint of a lower sequence: exchange the names, so that the tag is never
//         missing.
//       Sync both parents (the root and inflight/). Only then is the checkpoint COMMITTED.
//   5'. After an exchange the old checkpoint has the in-flight name: move it to trash. Read it once more
//       before that: another program may have put something else at the tag between the look at it and the
//       exchange. If so, exchange the names back, and fail the save with TAG_FOREIGN.
//   6.  Pointer files follow (pointers.cc). They are no part of the commit.
//
// Why a crash does no harm:
//
//   - Before 5: the in-flight directory exists. If it has all part records, recovery continues here;
//     otherwise it goes to trash. The tag holds what it held.
//   - In 5: a file system does a rename or does not. Because of 4 the tag holds the old or the new
//     checkpoint, whole.
//   - After the rename, before its sync: the death of the process changes nothing. The death of the node may
//     undo the rename: then everything is as before 5, and nobody was told COMMITTED. The next daemon syncs
//     the directories before it believes what it sees.
//   - After an exchange, before 5': inflight/ holds the old checkpoint under a name with the new sequence.
//     Recovery never publishes a directory whose part records have another sequence than its name, nor one
//     whose sequence is not above that of the tag's checkpoint.
//
// If a sync after the rename fails, nobody knows what a crash would leave: kIndeterminate. The sync is not
// repeated: a second one may succeed without writing what the first one dropped. The same holds for a rename
// that fails, if the in-flight name is no longer this directory.
//
// Without rename-exchange (some network file systems) a re-save needs two renames, so an intent is written
// first:
//
//   S1. Write the SwapIntent durably.
//   S2. Rename tag -> trash; sync both.
//   S3. Rename in-flight -> tag; sync both: the commit.
//   S4. Remove the intent durably.
//
// Between S2 and S3 the tag is missing. Recovery finds the intent and completes it: forward if the in-flight
// directory is whole, otherwise back (recovery.cc). If S3 fails, S2 is undone here, and only then is the
// outcome kFailed.
#include "storage/commit/local/publish.h"

#include <algorithm>
#include <cerrno>
#include <set>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"
#include "storage/base/status_macros.h"
#include "storage/commit/checkpoint/checkpoint_dir.h"
#include "storage/commit/steps/commit_rules.h"
#include "storage/commit/steps/pointers.h"
#include "storage/format/frame.h"
#include "storage/format/manifest.h"
#include "storage/format/names.h"

namespace ckptd {
namespace {

using storage::v1::FileRecord;
using storage::v1::ManifestSummary;
using storage::v1::PartRecord;
using storage::v1::SwapIntent;

PublishResult Committed() { return {PublishOutcome::kCommitted, absl::OkStatus()}; }
PublishResult Failed(absl::Status status) { return {PublishOutcome::kFailed, std::move(status)}; }

PublishResult Indeterminate(const absl::Status& cause, const Inflight& inflight) {
  return {PublishOutcome::kIndeterminate,
          MakeError(absl::StatusCode::kUnknown, "INDETERMINATE",
                    absl::StrCat("whether ", inflight.tag, " (sequence ", inflight.sequence,
                                 ") was published is not known until the root is scanned again: ",
                                 std::string(cause.message())),
                    {{"tag", inflight.tag}, {"sequence", absl::StrCat(inflight.sequence)}})};
}

// Step 4a, second half. Writes in place: the space is allocated, so a full disk does not lose the checkpoint
// now. `write_failed`: a write or a sync failed, which must not be tried again.
absl::Status WriteManifest(FileSystem& fs, Handle dir, const std::string& bytes, bool& write_failed) {
  CKPTD_ASSIGN_OR_RETURN(const ScopedHandle file,
                         OpenScoped(fs, dir, OurPath("", std::string(kManifestName)), OpenMode::kUpdate));
  absl::Status written = WriteFully(fs, file.get(), 0, std::as_bytes(std::span(bytes)));
  if (written.ok()) written = fs.Truncate(file.get(), static_cast<int64_t>(bytes.size()));
  if (written.ok()) written = fs.Sync(file.get(), SyncMode::kAll);
  write_failed = !written.ok();
  return written;
}

// Step 4b: innermost directories first. `write_failed` as above.
absl::Status SyncTree(FileSystem& fs, Handle dir, const Manifest& manifest, bool& write_failed) {
  std::set<std::string, std::greater<>> directories = {std::string(kOurDirectory)};
  for (const FileRecord& file : manifest.body.files()) {
    for (std::string& parent : ParentDirectories(file.path())) directories.insert(std::move(parent));
  }
  for (const std::string& path : directories) {
    CKPTD_ASSIGN_OR_RETURN(const ScopedHandle child, OpenScoped(fs, dir, path, OpenMode::kDirectory));
    const absl::Status synced = fs.Sync(child.get(), SyncMode::kAll);
    write_failed = !synced.ok();
    CKPTD_RETURN_IF_ERROR(synced);
  }
  const absl::Status synced = fs.Sync(dir, SyncMode::kAll);
  write_failed = !synced.ok();
  return synced;
}

// True if the in-flight name still is this directory. After a failed rename this proves that it was not done.
bool IsStillInflight(const Layout& layout, const Inflight& inflight) {
  const absl::StatusOr<FileStat> named = layout.fs->Stat(layout.inflight.get(), inflight.name);
  const absl::StatusOr<FileStat> opened = layout.fs->Stat(inflight.dir.get(), "");
  return named.ok() && opened.ok() && named->inode == opened->inode && named->device == opened->device;
}

absl::Status AppearedMeanwhile(const std::string& tag) {
  return TagForeignError(tag, "something that appeared while the checkpoint was written");
}

// The result of a failed rename in step 5 or S3.
PublishResult AfterFailedRename(const Layout& layout, const Inflight& inflight, const absl::Status& cause) {
  const absl::Status status = Annotate(cause, absl::StrCat("renaming ", inflight.name, " to ", inflight.tag));
  if (!IsStillInflight(layout, inflight)) return Indeterminate(status, inflight);
  const int error = ErrnoOf(cause);
  if (error == EEXIST || error == ENOTEMPTY || error == ENOTDIR) {
    return Failed(AppearedMeanwhile(inflight.tag));
  }
  return Failed(status);
}

absl::Status SyncParents(const Layout& layout) {
  CKPTD_RETURN_IF_ERROR(layout.fs->Sync(layout.root, SyncMode::kAll));
  return layout.fs->Sync(layout.inflight.get(), SyncMode::kAll);
}

// Step 5: one rename, in the mode that fits what is at the tag.
PublishResult RenameIn(const Layout& layout, const Inflight& inflight, RenameMode mode) {
  const absl::Status renamed =
      layout.fs->Rename(layout.inflight.get(), inflight.name, layout.root, inflight.tag, mode);
  if (!renamed.ok()) return AfterFailedRename(layout, inflight, renamed);
  const absl::Status synced = SyncParents(layout);
  if (!synced.ok()) return Indeterminate(Annotate(synced, "syncing after the rename"), inflight);
  return Committed();
}

// True if a directory holds the checkpoint that was at the tag before the rename.
absl::StatusOr<bool> IsCheckpoint(FileSystem& fs, Handle dir, const std::string& name,
                                  const ManifestSummary& seen) {
  const absl::StatusOr<ManifestSummary> summary = ReadSummary(fs, dir, name);
  if (CouldNotFindOut(summary.status())) return summary.status();
  return summary.ok() && summary->tag() == seen.tag() && summary->sequence() == seen.sequence();
}

PublishResult ExchangeIn(const PublishContext& context, const Inflight& inflight,
                         const ManifestSummary& old) {
  PublishResult result = RenameIn(context.layout, inflight, RenameMode::kExchange);
  if (result.outcome != PublishOutcome::kCommitted) return result;
  const Layout& layout = context.layout;
  const absl::StatusOr<bool> is_old = IsCheckpoint(*layout.fs, layout.inflight.get(), inflight.name, old);
  // If that cannot be found out, it stays in flight, and the next recovery decides.
  if (!is_old.ok()) return result;
  if (!*is_old) {
    const PublishResult back = RenameIn(layout, inflight, RenameMode::kExchange);
    return back.outcome == PublishOutcome::kCommitted ? Failed(AppearedMeanwhile(inflight.tag))
                                                      : Indeterminate(back.status, inflight);
  }
  // 5'. The new checkpoint is committed, whatever happens to the old one now: at worst it stays in flight
  // until the next recovery.
  context.trash
      .Move(context.layout.inflight.get(), inflight.name, FreshName(old.tag(), old.sequence()),
            old.size_bytes())
      .status.IgnoreError();
  return result;
}

// Undoes S2 after S3 failed and the tag is missing. OK if the tag durably holds the old checkpoint and the
// intent is gone.
absl::Status UndoSwap(const PublishContext& context, const SwapIntent& intent) {
  const Layout& layout = context.layout;
  FileSystem& fs = *layout.fs;
  CKPTD_RETURN_IF_ERROR(
      fs.Rename(layout.trash.get(), intent.trash_name(), layout.root, intent.tag(), RenameMode::kReplace));
  context.trash.Forget(intent.trash_name());
  CKPTD_RETURN_IF_ERROR(fs.Sync(layout.root, SyncMode::kAll));
  CKPTD_RETURN_IF_ERROR(fs.Sync(layout.trash.get(), SyncMode::kAll));
  return RemoveSwapIntent(fs, layout.node.get());
}

PublishResult SwapIn(const PublishContext& context, const Inflight& inflight, const ManifestSummary& old) {
  const Layout& layout = context.layout;
  FileSystem& fs = *layout.fs;
  SwapIntent intent;
  intent.set_tag(inflight.tag);
  intent.set_inflight_name(inflight.name);
  intent.set_trash_name(FreshName(old.tag(), old.sequence()));
  intent.set_sequence(inflight.sequence);
  // S1. An intent that is left behind while both names are in place has no effect but its removal.
  if (absl::Status stored = StoreSwapIntent(fs, layout.node.get(), intent); !stored.ok())
    return Failed(stored);
  // S2.
  const Trash::Moved moved =
      context.trash.Move(layout.root, inflight.tag, intent.trash_name(), old.size_bytes());
  if (moved.renamed && !moved.status.ok()) return Indeterminate(moved.status, inflight);
  if (!moved.status.ok()) {
    if (!fs.Stat(layout.root, inflight.tag).ok()) return Indeterminate(moved.status, inflight);
    RemoveSwapIntent(fs, layout.node.get()).IgnoreError();
    return Failed(moved.status);
  }
  const absl::StatusOr<bool> is_old = IsCheckpoint(fs, layout.trash.get(), intent.trash_name(), old);
  if (!is_old.ok() || !*is_old) {
    const absl::Status undone = UndoSwap(context, intent);
    if (!undone.ok()) return Indeterminate(Annotate(undone, "putting back what was at the tag"), inflight);
    PublishResult failed = Failed(is_old.ok() ? AppearedMeanwhile(inflight.tag) : is_old.status());
    failed.retryable = !is_old.ok();
    return failed;
  }
  // S3.
  PublishResult result = RenameIn(layout, inflight, RenameMode::kReplace);
  if (result.outcome == PublishOutcome::kIndeterminate) return result;
  if (result.outcome == PublishOutcome::kFailed) {
    const absl::Status undone = UndoSwap(context, intent);
    return undone.ok() ? result
                       : Indeterminate(Annotate(undone, "putting the old checkpoint back"), inflight);
  }
  // S4. A stale intent could act on a later state of the tag, so the root takes no changes until a scan has
  // removed it.
  const absl::Status removed = RemoveSwapIntent(fs, layout.node.get());
  if (!removed.ok()) return Indeterminate(Annotate(removed, "removing the swap intent"), inflight);
  return result;
}

}  // namespace

absl::StatusOr<Target> CheckedTarget(const Layout& layout, const Pins& pins, const std::string& tag) {
  CKPTD_RETURN_IF_ERROR(CheckTag(tag));
  CKPTD_ASSIGN_OR_RETURN(Target target, InspectTarget(*layout.fs, layout.root, tag));
  const bool pinned = target.kind == TargetKind::kCheckpoint && pins.Contains(tag, target.summary.sequence());
  CKPTD_RETURN_IF_ERROR(CheckTargetIsFree(tag, target, pinned));
  return target;
}

Published PublishInflight(const PublishContext& context, const Inflight& inflight,
                          const ManifestSummary& summary, const std::vector<PartRecord>& parts) {
  const Layout& layout = context.layout;
  FileSystem& fs = *layout.fs;
  Target target;
  bool write_failed = false;
  const auto prepare = [&]() -> absl::StatusOr<Manifest> {
    CKPTD_ASSIGN_OR_RETURN(target, CheckedTarget(layout, context.pins, inflight.tag));
    ManifestSummary whole = summary;
    for (const PartRecord& part : parts) MergePart(part.checkpoint(), whole);
    EndMerge(whole);
    CKPTD_RETURN_IF_ERROR(CheckMayReplace(target, /*pinned=*/false, whole));
    if (target.kind == TargetKind::kCheckpoint)
      CKPTD_RETURN_IF_ERROR(TakeOverPointers(fs, layout.root, target.summary, whole));
    CKPTD_ASSIGN_OR_RETURN(Manifest manifest, ManifestOfParts(inflight.tag, inflight.sequence, whole, parts,
                                                              context.clock.UnixMicros()));
    CKPTD_RETURN_IF_ERROR(CheckFiles(fs, inflight.dir.get(), manifest.body.files()));
    CKPTD_ASSIGN_OR_RETURN(const std::string bytes, EncodeManifest(manifest));
    CKPTD_RETURN_IF_ERROR(WriteManifest(fs, inflight.dir.get(), bytes, write_failed));
    CKPTD_RETURN_IF_ERROR(SyncTree(fs, inflight.dir.get(), manifest, write_failed));
    return manifest;
  };
  absl::StatusOr<Manifest> manifest = prepare();
  if (!manifest.ok()) {
    PublishResult failed = Failed(manifest.status());
    // Only the manifest in the in-flight directory was written, and the next try writes it again.
    failed.retryable = !write_failed && CouldNotFindOut(failed.status);
    return {failed, {}};
  }
  PublishResult result;
  switch (target.kind) {
    case TargetKind::kNothing:
      result = RenameIn(layout, inflight,
                        context.probe.rename_noreplace ? RenameMode::kNoReplace : RenameMode::kReplace);
      break;
    case TargetKind::kEmptyDirectory:
      result = RenameIn(layout, inflight, RenameMode::kReplace);
      break;
    case TargetKind::kCheckpoint:
      result = context.probe.rename_exchange ? ExchangeIn(context, inflight, target.summary)
                                             : SwapIn(context, inflight, target.summary);
      break;
    case TargetKind::kForeign:  // Refused by CheckedTarget.
      result = Failed(TagForeignError(inflight.tag, target.what));
      break;
  }
  return {result, manifest->summary};
}

}  // namespace ckptd
