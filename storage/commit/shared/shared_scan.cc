// Damage is what a node keeps seeing. Another node's rename, removal or write explains that a manifest is
// missing, cut off or of another tag for as long as a file system shows what is old, and no longer. So a look
// that finds damage is repeated, and a suspicion that changes, or whose directory is another one, begins
// anew.
#include "storage/commit/shared/shared_scan.h"

#include <algorithm>
#include <cerrno>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/commit/checkpoint/checkpoint_dir.h"
#include "storage/commit/shared/run/look_again.h"
#include "storage/commit/shared/save/shared_inflight.h"
#include "storage/format/names.h"

namespace ckptd {
namespace {

absl::StatusOr<int64_t> HighestTerm(FileSystem& fs, Handle shared) {
  CKPTD_ASSIGN_OR_RETURN(const std::vector<DirEntry> entries, fs.List(shared));
  int64_t highest = 0;
  for (const DirEntry& entry : entries) {
    highest = std::max(
        {highest, ParseSharedRecordName(entry.name).value_or(0), ParseTermName(entry.name).value_or(0)});
  }
  return highest;
}

int64_t HighestSequence(const SharedRootScan& scan) {
  int64_t highest = scan.checkpoints.empty() ? 0 : scan.checkpoints.rbegin()->first;
  for (const auto& removed : scan.half_removed) highest = std::max(highest, removed.sequence);
  for (const auto* saves : {&scan.in_flight, &scan.in_trash}) {
    for (const SharedInflight& save : *saves) highest = std::max(highest, save.sequence);
  }
  return highest;
}

// A directory of the root in which ScanRoot has found no manifest.
struct Unlisted {
  int64_t half_removed = 0;    // The sequence of what was a checkpoint there.
  uint64_t inode = 0;          // Of the directory, if it is half removed.
  bool lost_manifest = false;  // It has the records of nodes: no step of ckptd leaves that.
};

// ENOENT if it changes while it is looked at, and so looks like what it is not.
absl::StatusOr<Unlisted> Inspect(const SharedLayout& layout, const std::string& tag) {
  FileSystem& fs = *layout.fs;
  CKPTD_ASSIGN_OR_RETURN(const ScopedHandle dir, OpenScoped(fs, layout.root, tag, OpenMode::kDirectory));
  CKPTD_ASSIGN_OR_RETURN(const std::vector<DirEntry> entries, fs.List(dir.get()));
  Unlisted found;
  bool ours = false;
  for (const DirEntry& entry : entries) {
    if (entry.type != FileType::kDirectory) continue;
    if (const auto sequence = ParseRemovedName(entry.name)) found.half_removed = *sequence;
    if (entry.name == kOurDirectory) ours = true;
  }
  if (found.half_removed != 0) {
    CKPTD_ASSIGN_OR_RETURN(const FileStat stat, fs.Stat(dir.get(), ""));
    found.inode = stat.inode;
    return found;
  }
  if (!ours) return found;
  CKPTD_ASSIGN_OR_RETURN(const ScopedHandle records,
                         OpenScoped(fs, dir.get(), kOurDirectory, OpenMode::kDirectory));
  CKPTD_ASSIGN_OR_RETURN(const std::vector<DirEntry> names, fs.List(records.get()));
  for (const DirEntry& entry : names) {
    if (entry.name == kManifestName) return ErrnoError(ENOENT, absl::StrCat("the manifest of ", tag));
    if (entry.name.starts_with("node.")) found.lost_manifest = true;
  }
  return found;
}

}  // namespace

absl::StatusOr<SharedRootScan> SharedScanner::Look() {
  absl::StatusOr<SharedRootScan> scan = LookOnce();
  absl::Status settled = scan.status();
  if (settled.ok()) settled = Confirm(*scan);
  if (settled.ok()) {
    failing_since_.reset();
    return scan;
  }
  return MayBeAnothersChange(settled) ? NotYet(settled) : settled;
}

absl::Status SharedScanner::NotYet(const absl::Status& error) {
  if (!failing_since_.has_value()) failing_since_ = clock_.Now();
  if (clock_.Now() - *failing_since_ >= staleness_) return error;
  return LookAgain("what is in the root", error);
}

absl::StatusOr<SharedRootScan> SharedScanner::LookOnce() const {
  SharedRootScan scan;
  CKPTD_ASSIGN_OR_RETURN(RootScan found, ScanRoot(*layout_.fs, layout_.root));
  for (auto& [sequence, summary] : found.checkpoints)
    scan.checkpoints[sequence] = {.summary = std::move(summary)};
  for (auto& [tag, status] : found.damaged) scan.damaged.push_back({tag, std::move(status)});
  scan.foreign = std::move(found.foreign);
  CKPTD_RETURN_IF_ERROR(FindUnlisted(scan));
  CKPTD_ASSIGN_OR_RETURN(scan.in_flight, ListInFlight(layout_));
  CKPTD_ASSIGN_OR_RETURN(scan.in_trash, ListInTrash(layout_));
  CKPTD_ASSIGN_OR_RETURN(scan.highest_term, HighestTerm(*layout_.fs, layout_.shared.get()));
  scan.highest_sequence = HighestSequence(scan);
  return scan;
}

// What ScanRoot takes for another program's directories.
absl::Status SharedScanner::FindUnlisted(SharedRootScan& scan) const {
  std::set<std::string> listed;
  for (const auto& [sequence, checkpoint] : scan.checkpoints) listed.insert(checkpoint.summary.tag());
  for (const DamagedCheckpoint& damaged : scan.damaged) listed.insert(damaged.tag);
  CKPTD_ASSIGN_OR_RETURN(const std::vector<DirEntry> entries, layout_.fs->List(layout_.root));
  for (const DirEntry& entry : entries) {
    if (entry.type != FileType::kDirectory || !CheckTag(entry.name).ok() || listed.contains(entry.name))
      continue;
    const absl::StatusOr<Unlisted> found = Inspect(layout_, entry.name);
    if (absl::IsPermissionDenied(found.status())) continue;  // Another user's, such as lost+found.
    CKPTD_RETURN_IF_ERROR(found.status());
    if (found->half_removed != 0) {
      scan.half_removed.push_back({entry.name, found->half_removed, found->inode});
      std::erase_if(scan.foreign, [&entry](const ForeignTag& foreign) { return foreign.tag == entry.name; });
    } else if (found->lost_manifest) {
      scan.damaged.push_back({entry.name, MakeError(absl::StatusCode::kDataLoss, "CORRUPT_MANIFEST",
                                                    "the manifest is not there, but records of nodes are")});
    }
  }
  return absl::OkStatus();
}

absl::Status SharedScanner::Confirm(SharedRootScan& scan) {
  std::map<std::string, Suspicion> now;
  absl::Status settled;
  std::vector<DamagedCheckpoint> damaged;
  for (DamagedCheckpoint& found : scan.damaged) {
    const absl::StatusOr<FileStat> stat = layout_.fs->Stat(layout_.root, found.tag);
    if (IsMissing(stat.status())) continue;  // It is gone.
    CKPTD_RETURN_IF_ERROR(stat.status());
    Suspicion suspicion{stat->device, stat->inode, std::string(found.status.message()), clock_.Now()};
    const auto before = suspicions_.find(found.tag);
    if (before != suspicions_.end() && before->second.device == suspicion.device &&
        before->second.inode == suspicion.inode && before->second.what == suspicion.what) {
      suspicion.since = before->second.since;
    }
    if (clock_.Now() - suspicion.since < staleness_) {
      settled.Update(LookAgain(absl::StrCat("whether ", found.tag, " is damaged"), suspicion.what));
    } else if (ReasonOf(found.status) == "NEWER_FORMAT") {  // Without it an older one would be the latest.
      settled.Update(Annotate(found.status, found.tag));
    }
    now[found.tag] = std::move(suspicion);
    damaged.push_back(std::move(found));
  }
  suspicions_ = std::move(now);
  scan.damaged = std::move(damaged);
  return settled;
}

}  // namespace ckptd
