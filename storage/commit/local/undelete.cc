#include "storage/commit/local/undelete.h"

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"
#include "storage/base/status_macros.h"
#include "storage/commit/checkpoint/checkpoint_dir.h"
#include "storage/commit/checkpoint/scan.h"
#include "storage/format/manifest.h"

namespace ckptd {
namespace {

using storage::v1::ManifestSummary;

// The mode of the rename that puts a checkpoint at the tag. Fails if something is there that must stay.
absl::StatusOr<RenameMode> CheckFree(const Layout& layout, const ProbeResult& probe, const std::string& tag) {
  CKPTD_ASSIGN_OR_RETURN(const Target target, InspectTarget(*layout.fs, layout.root, tag));
  switch (target.kind) {
    case TargetKind::kForeign:
      return TagForeignError(tag, target.what);
    case TargetKind::kCheckpoint:
      return TagTakenError(tag, target.summary.sequence());
    case TargetKind::kEmptyDirectory:
      return RenameMode::kReplace;  // Which replaces an empty directory, and refuses any other.
    case TargetKind::kNothing:
      break;
  }
  return probe.rename_noreplace ? RenameMode::kNoReplace : RenameMode::kReplace;
}

absl::Status CheckWhole(FileSystem& fs, Handle trash, const Trash::Found& found) {
  CKPTD_ASSIGN_OR_RETURN(const ScopedHandle dir, OpenScoped(fs, trash, found.name, OpenMode::kDirectory));
  CKPTD_ASSIGN_OR_RETURN(const Manifest manifest, ReadWholeManifest(fs, dir.get(), ""));
  return CheckFiles(fs, dir.get(), manifest.body.files());
}

absl::Status NotInTrash(const std::string& tag, int64_t sequence) {
  return MakeError(
      absl::StatusCode::kNotFound, reason::kNoCheckpoint,
      absl::StrCat("no checkpoint ", tag, sequence == 0 ? "" : absl::StrCat(" of sequence ", sequence),
                   " is in the trash, or it is being deleted already"),
      {{"tag", tag}});
}

BroughtBack Unknown(const ManifestSummary& summary, const absl::Status& cause) {
  return {.status = MakeError(
              absl::StatusCode::kUnknown, reason::kIndeterminate,
              absl::StrCat("whether ", summary.tag(), " (sequence ", summary.sequence(),
                           ") is back from the trash is not known until the root is scanned again: ",
                           std::string(cause.message())),
              {{"tag", summary.tag()}, {"sequence", absl::StrCat(summary.sequence())}}),
          .unknown = true};
}

// U3.
BroughtBack RenameBack(const Layout& layout, Pins& pins, Trash& trash, const std::string& name,
                       const ManifestSummary& summary, RenameMode mode) {
  FileSystem& fs = *layout.fs;
  const Handle from = layout.trash.get();
  const absl::Status renamed = fs.Rename(from, name, layout.root, summary.tag(), mode);
  if (!renamed.ok()) {
    if (!fs.Stat(from, name).ok()) return Unknown(summary, renamed);
    pins.Set(fs, layout.ours.get(), summary.tag(), summary.sequence(), false).IgnoreError();
    return {Annotate(renamed, absl::StrCat("bringing ", summary.tag(), " back"))};
  }
  trash.Forget(name);
  absl::Status synced = fs.Sync(layout.root, SyncMode::kAll);
  if (synced.ok()) synced = fs.Sync(from, SyncMode::kAll);
  if (!synced.ok()) return Unknown(summary, synced);
  return {.status = absl::OkStatus(), .summary = summary};
}

}  // namespace

BroughtBack BringBack(const Layout& layout, const ProbeResult& probe, Pins& pins, Trash& trash,
                      const std::string& tag, int64_t sequence) {
  const std::optional<Trash::Found> found = trash.FindWhole(tag, sequence);
  if (!found.has_value()) return {NotInTrash(tag, sequence)};
  // U1.
  const absl::StatusOr<RenameMode> mode = CheckFree(layout, probe, tag);
  if (!mode.ok()) return {mode.status()};
  if (absl::Status whole = CheckWhole(*layout.fs, layout.trash.get(), *found); !whole.ok())
    return {Annotate(whole, absl::StrCat(tag, " in the trash is not whole any more"))};
  // U2.
  const int64_t number = found->summary.sequence();
  if (absl::Status pinned = pins.Set(*layout.fs, layout.ours.get(), tag, number, true); !pinned.ok())
    return {Annotate(pinned, absl::StrCat("pinning ", tag))};
  return RenameBack(layout, pins, trash, found->name, found->summary, *mode);
}

}  // namespace ckptd
