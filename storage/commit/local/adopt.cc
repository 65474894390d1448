// How ckptd adopts a checkpoint of another program, without changing, renaming or moving any of its files.
//
// On entry (ForeignReader) every file was synced and then read, and the directories and the root were synced.
// So the checksums describe what is on disk, under its names.
//
//   1. Make `inflight/<tag>.<sequence>.<unique>/` with `manifest` and `part-00000` in it, all synced. These
//      two are not where a checkpoint in flight has them, so recovery finds no part there and moves the
//      directory to trash.
//   2. Walk the tag once more. If anything differs from before the first byte was read (a size, a time, an
//      inode, a name), stop here.
//   3. Rename that directory to `<tag>/.ckptd`. This is the commit point: before it the tag is foreign, after
//      it it is ckptd's, with both records. The rename replaces nothing: step 2 refuses a tag with a
//      `.ckptd`.
//   4. Sync `<tag>/` and inflight/. Only then report the checkpoint as adopted.
//
// Why a crash does no harm: before 3 the tag is unchanged, and recovery removes the directory of 1. After 3
// the death of the process changes nothing. A machine that dies before 4 may undo the rename, and nobody was
// told; a daemon that finds an adopted checkpoint syncs its directory before it believes what it sees
// (SyncAdopted). If a sync of 4 fails, nobody knows what a crash would leave: kIndeterminate.
#include "storage/commit/local/adopt.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/commit/checkpoint/checkpoint_dir.h"
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
           MakeError(absl::StatusCode::kUnknown, "INDETERMINATE",
                     absl::StrCat("whether ", summary.tag(),
                                  " was adopted is not known until the root is scanned again: ",
                                  std::string(cause.message())),
                     {{"tag", summary.tag()}, {"sequence", absl::StrCat(summary.sequence())}})},
          {}};
}

// Step 1: writes the records into the directory that will become the tag's.
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
  // Never write what ckptd's own reader would reject.
  CKPTD_RETURN_IF_ERROR(DecodeManifest(manifest_bytes).status());
  CKPTD_RETURN_IF_ERROR(DecodePartRecord(part_bytes).status());
  CKPTD_RETURN_IF_ERROR(fs.MakeDir(layout.inflight.get(), name));
  CKPTD_ASSIGN_OR_RETURN(const ScopedHandle dir,
                         OpenScoped(fs, layout.inflight.get(), name, OpenMode::kDirectory));
  CKPTD_RETURN_IF_ERROR(WriteNewFile(fs, dir.get(), PartRecordName(0), part_bytes));
  CKPTD_RETURN_IF_ERROR(WriteNewFile(fs, dir.get(), kManifestName, manifest_bytes));
  return fs.Sync(dir.get(), SyncMode::kAll);
}

// Steps 2 and 3. `renamed`: the rename was done or, if it returned an error, perhaps was.
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
  // A failed rename was not done if the old name still exists.
  renamed = moved.ok() || !fs.Stat(layout.inflight.get(), name).ok();
  return Annotate(moved, absl::StrCat("moving the manifest into ", tag));
}

}  // namespace

absl::Status SyncAdopted(const Layout& layout, const RootScan& scan) {
  for (const auto& [sequence, summary] : scan.checkpoints) {
    if (summary.adopted_from().empty()) continue;
    const std::string& tag = summary.tag();
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
    Published failed = Failed(moved);
    failed.left = name;
    return failed;
  }
  if (!moved.ok()) return Indeterminate(summary, moved);
  absl::Status synced = fs.Sync(tag_dir->get(), SyncMode::kAll);
  if (synced.ok()) synced = fs.Sync(layout.inflight.get(), SyncMode::kAll);
  if (!synced.ok()) return Indeterminate(summary, Annotate(synced, "syncing after the rename"));
  return {{PublishOutcome::kCommitted, absl::OkStatus()}, summary};
}

}  // namespace ckptd
