#include "storage/commit/checkpoint/scan.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/commit/checkpoint/checkpoint_dir.h"
#include "storage/format/names.h"

namespace ckptd {
namespace {

using storage::v1::ManifestSummary;

absl::Status CorruptManifest(const std::string& why) {
  return MakeError(absl::StatusCode::kDataLoss, "CORRUPT_MANIFEST", why);
}

// The summary of a directory in the root; nullopt if the directory is not ckptd's. Errors as ReadSummary.
absl::StatusOr<std::optional<ManifestSummary>> ReadCheckpoint(FileSystem& fs, Handle root,
                                                              const std::string& tag) {
  absl::StatusOr<ManifestSummary> summary = ReadSummary(fs, root, tag);
  if (summary.ok()) {
    if (summary->tag() == tag) return *std::move(summary);
    return CorruptManifest(
        absl::StrCat("the manifest is of tag ", summary->tag(),
                     ": this directory was renamed or copied; give it that name back to have it listed"));
  }
  if (!IsMissing(summary.status())) return summary.status();
  // A directory that is itself a root has .ckptd, too, but every checkpoint has a part of rank 0.
  const absl::StatusOr<FileStat> part = fs.Stat(root, OurPath(tag, PartRecordName(0)));
  if (part.ok()) {
    // In a bucket: an upload that has not ended (storage/bucket/upload.h).
    const std::string claim = OurPath(tag, absl::StrCat(std::string(kManifestName), ".new"));
    const absl::Status unfinished = fs.Stat(root, claim).status();
    if (unfinished.ok()) return std::nullopt;
    if (!IsMissing(unfinished)) return unfinished;
    return CorruptManifest("the manifest is not there, but part records are");
  }
  if (IsMissing(part.status())) return std::nullopt;
  return part.status();
}

// True if the error is about the one directory that was examined, and not about this process or the file
// system.
bool IsOfThatDirectory(const absl::Status& status) {
  if (CouldNotFindOut(status)) return false;
  switch (status.code()) {
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kInvalidArgument:
      return true;
    default:
      return IsInTheWay(status) || ProvesDamage(status);
  }
}

// True for a directory that this user may not read because it is another user's (lost+found, say), or that
// has vanished.
absl::StatusOr<bool> IsSomebodyElses(FileSystem& fs, Handle root, const std::string& tag,
                                     const absl::Status& status) {
  if (status.code() != absl::StatusCode::kPermissionDenied) return false;
  CKPTD_ASSIGN_OR_RETURN(const FileStat ours, fs.Stat(root, kOurDirectory));
  const absl::StatusOr<FileStat> theirs = fs.Stat(root, tag);
  if (IsMissing(theirs.status())) return true;
  if (!theirs.ok()) return theirs.status();
  return ours.uid != theirs->uid;
}

// Nullopt: this is not a finished checkpoint of another program.
absl::StatusOr<std::optional<ForeignTag>> FindMarker(FileSystem& fs, Handle root, const std::string& tag) {
  const absl::StatusOr<FileStat> marker = fs.Stat(root, absl::StrCat(tag, "/", kForeignMarker));
  if (IsMissing(marker.status())) return std::nullopt;
  if (!marker.ok() && IsOfThatDirectory(marker.status())) return std::nullopt;
  if (!marker.ok()) return Annotate(marker.status(), absl::StrCat("looking for a marker in ", tag));
  if (marker->type != FileType::kRegular) return std::nullopt;
  return ForeignTag{tag, MarkerTime(*marker)};
}

}  // namespace

int64_t MarkerTime(const FileStat& marker) { return std::max<int64_t>(0, marker.modified_ns / 1000); }

absl::StatusOr<RootScan> ScanRoot(
    FileSystem& fs, Handle root,
    const std::function<bool(const std::string& tag, int64_t sequence)>& is_known) {
  CKPTD_ASSIGN_OR_RETURN(const std::vector<DirEntry> entries, fs.List(root));
  RootScan scan;
  for (const DirEntry& entry : entries) {
    // A name that is no valid tag is not ckptd's, but may be another program's.
    if (entry.type != FileType::kDirectory) continue;
    scan.directories.insert(entry.name);
    if (!CheckFilePath(entry.name).ok()) continue;
    absl::StatusOr<std::optional<ManifestSummary>> found = std::nullopt;
    if (CheckTag(entry.name).ok()) found = ReadCheckpoint(fs, root, entry.name);
    if (!found.ok()) {
      if (!IsOfThatDirectory(found.status())) {
        return Annotate(found.status(),
                        absl::StrCat("reading the manifest of ", entry.name,
                                     " (repair the file system, or move that directory out of the root "
                                     "to go on without it)"));
      }
      CKPTD_ASSIGN_OR_RETURN(const bool elses, IsSomebodyElses(fs, root, entry.name, found.status()));
      if (!elses) scan.damaged.emplace_back(entry.name, found.status());
      continue;
    }
    if (!found->has_value()) {
      CKPTD_ASSIGN_OR_RETURN(std::optional<ForeignTag> foreign, FindMarker(fs, root, entry.name));
      if (foreign.has_value()) scan.foreign.push_back(*std::move(foreign));
      continue;
    }
    const int64_t sequence = (*found)->sequence();
    const auto [place, fresh] = scan.checkpoints.try_emplace(sequence, **found);
    if (fresh) continue;
    ManifestSummary& listed = place->second;
    ManifestSummary other = **std::move(found);
    if (is_known != nullptr && is_known(other.tag(), sequence)) std::swap(listed, other);
    scan.damaged.emplace_back(other.tag(), CorruptManifest(absl::StrCat(
                                               "its sequence ", sequence, " is also that of ", listed.tag(),
                                               ": one of them was copied or moved into this root")));
  }
  std::sort(scan.foreign.begin(), scan.foreign.end());
  return scan;
}

NewCheckpoints FindNewCheckpoints(FileSystem& fs, Handle root, const std::set<std::string>& known) {
  NewCheckpoints found;
  const absl::StatusOr<std::vector<DirEntry>> entries = fs.List(root);
  if (!entries.ok()) return found;
  for (const DirEntry& entry : *entries) {
    if (entry.type != FileType::kDirectory || known.contains(entry.name)) continue;
    const absl::StatusOr<ManifestSummary> summary = ReadSummary(fs, root, entry.name);
    if (IsMissing(summary.status())) continue;
    if (IsSomebodyElses(fs, root, entry.name, summary.status()).value_or(false)) continue;
    found.any = true;
    if (summary.ok()) found.highest_sequence = std::max(found.highest_sequence, summary->sequence());
  }
  return found;
}

absl::StatusOr<Target> InspectTarget(FileSystem& fs, Handle root, const std::string& tag) {
  const absl::StatusOr<FileStat> stat = fs.Stat(root, tag);
  if (IsMissing(stat.status())) return Target{TargetKind::kNothing, {}, ""};
  if (!stat.ok()) return stat.status();
  if (stat->type == FileType::kSymlink) return Target{TargetKind::kForeign, {}, "a symbolic link"};
  if (stat->type != FileType::kDirectory) return Target{TargetKind::kForeign, {}, "a file"};
  absl::StatusOr<std::optional<ManifestSummary>> found = ReadCheckpoint(fs, root, tag);
  if (!found.ok()) {
    if (!IsOfThatDirectory(found.status())) return found.status();
    return Target{TargetKind::kForeign,
                  {},
                  absl::StrCat("a directory with a manifest that is not good (",
                               std::string(found.status().message()), ")")};
  }
  if (found->has_value()) return Target{TargetKind::kCheckpoint, **std::move(found), ""};
  CKPTD_ASSIGN_OR_RETURN(const ScopedHandle dir, OpenScoped(fs, root, tag, OpenMode::kDirectory));
  CKPTD_ASSIGN_OR_RETURN(const std::vector<DirEntry> entries, fs.List(dir.get()));
  if (entries.empty()) return Target{TargetKind::kEmptyDirectory, {}, ""};
  return Target{TargetKind::kForeign, {}, "a directory that ckptd did not write"};
}

absl::Status TagTakenError(const std::string& tag, int64_t sequence) {
  return MakeError(absl::StatusCode::kAlreadyExists, "TAG_TAKEN",
                   absl::StrCat(tag, " is taken by the checkpoint of sequence ", sequence,
                                ": delete that one first; it then goes to the trash itself"),
                   {{"tag", tag}, {"sequence", absl::StrCat(sequence)}});
}

absl::Status TagForeignError(const std::string& tag, const std::string& what) {
  return MakeError(absl::StatusCode::kAlreadyExists, "TAG_FOREIGN",
                   absl::StrCat(tag, " is ", what,
                                ", which ckptd leaves unchanged; save under another tag, or move it away"),
                   {{"tag", tag}});
}

absl::Status CheckPointerTarget(FileSystem& fs, Handle root, const std::string& name) {
  CKPTD_RETURN_IF_ERROR(CheckPointerName(name));
  const absl::StatusOr<FileStat> stat = fs.Stat(root, name);
  if (IsMissing(stat.status())) return absl::OkStatus();
  if (!stat.ok()) return stat.status();
  if (stat->type == FileType::kRegular || stat->type == FileType::kSymlink) return absl::OkStatus();
  const char* const what = stat->type == FileType::kDirectory ? "a directory" : "a special file";
  return MakeError(absl::StatusCode::kAlreadyExists, "POINTER_FOREIGN",
                   absl::StrCat("the pointer ", name, " would take the place of ", what,
                                ", which ckptd leaves unchanged; name another pointer, or move it away"),
                   {{"path", name}});
}

absl::Status CheckPointerTargets(FileSystem& fs, Handle root, const std::vector<std::string>& names) {
  for (const std::string& name : names) CKPTD_RETURN_IF_ERROR(CheckPointerTarget(fs, root, name));
  return absl::OkStatus();
}

}  // namespace ckptd
