// How a checkpoint of another program becomes ours, without anything of it being changed, renamed or moved.
//
// On entry (ForeignReader): every file of it was synced and then read, and its directories and the root were
// synced. So what the checksums say is on disk, under its names.
//
//   1. `inflight/<tag>.<sequence>.<unique>/` is made, with `manifest` and `part-00000` in it, all synced.
//   These
//      two lie where no checkpoint in flight has them, so recovery finds no part there and sends the
//      directory to trash.
//   2. The tag is walked once more. Whatever is not as it was before the first byte was read (a size, a time,
//   an
//      inode, a name) ends it here.
//   3. That directory is renamed to `<tag>/.ckptd`: the commit point. Before it the tag is foreign, after it
//      ours, with both records; there is nothing in between. Over nothing only: a `.ckptd` that is there
//      already was refused in 2.
//   4. `<tag>/` and inflight/ are synced. Only after that is it said to be adopted.
//
// Why a crash does no harm: before 3 the tag is what it was, and recovery removes what 1 left. After 3 a
// process that dies changes nothing. A machine that dies before 4 may take the rename back, and nobody was
// told; a daemon that finds an adopted checkpoint syncs its directory before it believes what it sees
// (SyncAdopted). When a sync of 4 fails, nobody knows what a crash would leave: kIndeterminate.
#include "storage/commit/adopt.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/commit/checkpoint_dir.h"
#include "storage/format/frame.h"
#include "storage/format/manifest.h"
#include "storage/format/names.h"

namespace ckptd {
namespace {

using storage::v1::FileRecord;
using storage::v1::ManifestSummary;
using storage::v1::PartRecord;

Published Failed(absl::Status status) { return {{PublishOutcome::kFailed, std::move(status)}, {}}; }

Published Indeterminate(const ManifestSummary& summary, const absl::Status& cause) {
  return {{PublishOutcome::kIndeterminate,
           MakeError(
               absl::StatusCode::kUnknown, "INDETERMINATE",
               absl::StrCat("whether ", summary.tag(), " is adopted is not known until the root is scanned: ",
                            std::string(cause.message())),
               {{"tag", summary.tag()}, {"sequence", absl::StrCat(summary.sequence())}})},
          {}};
}

// Step 1: the records, as they will lie in the tag.
absl::Status WriteRecords(const Layout& layout, const std::string& name, const ForeignSurvey& survey,
                          const ManifestSummary& summary) {
  FileSystem& fs = *layout.fs;
  Manifest manifest{summary, {}};
  PartRecord part;
  part.set_format_version(summary.format_version());
  part.set_sequence(summary.sequence());
  part.set_chunk_bytes(summary.chunk_bytes());
  *part.mutable_checkpoint() = summary;
  for (const FileRecord& file : survey.files) {
    *manifest.body.add_files() = file;
    *part.add_files() = file;
  }
  CKPTD_ASSIGN_OR_RETURN(const std::string manifest_bytes, EncodeManifest(manifest));
  const std::string part_bytes = EncodePartRecord(part);
  // What no reader of ours would believe must not be written.
  CKPTD_RETURN_IF_ERROR(DecodeManifest(manifest_bytes).status());
  CKPTD_RETURN_IF_ERROR(DecodePartRecord(part_bytes).status());
  CKPTD_RETURN_IF_ERROR(fs.MakeDir(layout.inflight.get(), name));
  CKPTD_ASSIGN_OR_RETURN(const ScopedHandle dir,
                         OpenScoped(fs, layout.inflight.get(), name, OpenMode::kDirectory));
  CKPTD_RETURN_IF_ERROR(WriteNewFile(fs, dir.get(), PartRecordName(0), part_bytes));
  CKPTD_RETURN_IF_ERROR(WriteNewFile(fs, dir.get(), kManifestName, manifest_bytes));
  return fs.Sync(dir.get(), SyncMode::kAll);
}

// Steps 2 and 3. `renamed` says whether it got that far, or, on an error of the rename, perhaps did.
absl::Status MoveIn(const PublishContext& context, const std::string& name, const ForeignSurvey& survey,
                    Handle tag_dir, bool& renamed) {
  const Layout& layout = context.layout;
  FileSystem& fs = *layout.fs;
  const std::string& tag = survey.tree.tag.tag;
  CKPTD_ASSIGN_OR_RETURN(ForeignTree now, WalkForeign(fs, layout.root, tag, survey.owner));
  CKPTD_ASSIGN_OR_RETURN(now.directory, fs.Stat(tag_dir, ""));  // What the rename goes to.
  CKPTD_RETURN_IF_ERROR(CheckUnchanged(survey.tree, now));
  const RenameMode mode = context.probe.rename_noreplace ? RenameMode::kNoReplace : RenameMode::kReplace;
  const absl::Status moved = fs.Rename(layout.inflight.get(), name, tag_dir, kOurDirectory, mode);
  // One that failed was not done when its old name is there still.
  renamed = moved.ok() || !fs.Stat(layout.inflight.get(), name).ok();
  return Annotate(moved, absl::StrCat("moving the manifest into ", tag));
}

}  // namespace

absl::Status SyncAdopted(const Layout& layout, const RootScan& scan) {
  for (const auto& entry : scan.checkpoints) {
    if (entry.second.adopted_from().empty()) continue;
    const std::string& tag = entry.second.tag();
    CKPTD_ASSIGN_OR_RETURN(const ScopedHandle dir,
                           OpenScoped(*layout.fs, layout.root, tag, OpenMode::kDirectory));
    CKPTD_RETURN_IF_ERROR(
        Annotate(layout.fs->Sync(dir.get(), SyncMode::kAll), absl::StrCat("syncing ", tag)));
  }
  return absl::OkStatus();
}

Published AdoptForeign(const PublishContext& context, const ForeignSurvey& survey,
                       const ManifestSummary& summary) {
  const Layout& layout = context.layout;
  FileSystem& fs = *layout.fs;
  absl::StatusOr<ScopedHandle> tag_dir = OpenScoped(fs, layout.root, summary.tag(), OpenMode::kDirectory);
  if (!tag_dir.ok()) return Failed(Annotate(tag_dir.status(), summary.tag()));
  const std::string name = FreshName(summary.tag(), summary.sequence());
  bool renamed = false;
  absl::Status moved = WriteRecords(layout, name, survey, summary);
  if (moved.ok()) moved = MoveIn(context, name, survey, tag_dir->get(), renamed);
  if (!renamed) {
    // What cannot be removed now, recovery removes: it has no part.
    RemoveTree(fs, layout.inflight.get(), name).IgnoreError();
    return Failed(moved);
  }
  if (!moved.ok()) return Indeterminate(summary, moved);
  absl::Status synced = fs.Sync(tag_dir->get(), SyncMode::kAll);
  if (synced.ok()) synced = fs.Sync(layout.inflight.get(), SyncMode::kAll);
  if (!synced.ok()) return Indeterminate(summary, Annotate(synced, "syncing after the rename"));
  return {{PublishOutcome::kCommitted, absl::OkStatus()}, summary};
}

}  // namespace ckptd
