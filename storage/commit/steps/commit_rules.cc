#include "storage/commit/steps/commit_rules.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"
#include "storage/base/status_macros.h"
#include "storage/format/frame.h"
#include "storage/format/names.h"

namespace ckptd {

using storage::v1::FileRecord;
using storage::v1::ManifestSummary;
using storage::v1::PartRecord;

absl::Status CheckTargetIsFree(const std::string& tag, const Target& target, bool pinned) {
  if (target.kind == TargetKind::kForeign) return TagForeignError(tag, target.what);
  if (target.kind != TargetKind::kCheckpoint || !pinned) return absl::OkStatus();
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kPinned,
                   absl::StrCat(tag, " is pinned (sequence ", target.summary.sequence(),
                                ") and cannot be replaced; unpin it, or save under another tag"),
                   {{"tag", tag}});
}

absl::Status CheckMayReplace(const Target& target, bool pinned, const ManifestSummary& save) {
  CKPTD_RETURN_IF_ERROR(CheckTargetIsFree(save.tag(), target, pinned));
  if (target.kind != TargetKind::kCheckpoint) return absl::OkStatus();
  const ManifestSummary& there = target.summary;
  if (there.sequence() >= save.sequence()) {
    return MakeError(absl::StatusCode::kAborted, reason::kSuperseded,
                     absl::StrCat(save.tag(), " holds sequence ", there.sequence(), ", and this save is ",
                                  save.sequence(), ": a younger save of the tag was committed first"),
                     {{"tag", save.tag()}, {"sequence", absl::StrCat(save.sequence())}});
  }
  if (save.suspect().empty() || !there.suspect().empty()) return absl::OkStatus();
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kSuspect,
                   absl::StrCat("the save of ", save.tag(), " is suspect (", save.suspect(),
                                ") and does not replace the checkpoint of that tag (sequence ",
                                there.sequence(), "); save under another tag"),
                   {{"tag", save.tag()}, {"sequence", absl::StrCat(there.sequence())}});
}

bool IsRefusal(const absl::Status& status) {
  const std::string reason = ReasonOf(status);
  return reason == reason::kTagForeign || reason == reason::kPinned || reason == reason::kSuperseded ||
         reason == reason::kSuspect;
}

void MergePart(const ManifestSummary& part, ManifestSummary& save) {
  if (!save.has_step() && part.has_step()) save.set_step(part.step());
  if (save.metrics().empty()) *save.mutable_metrics() = part.metrics();
  if (save.suspect().empty()) save.set_suspect(part.suspect());
  save.mutable_pointers()->insert(part.pointers().begin(), part.pointers().end());
}

void SetTimes(const CommitTimes& times, ManifestSummary& save) {
  save.set_commit_time_us(times.this_us);
  save.set_create_time_us(
      std::clamp(save.create_time_us(), std::min(times.earlier_us + 1, times.this_us), times.this_us));
}

void EndMerge(ManifestSummary& save) {
  if (!save.suspect().empty()) save.clear_pointers();
}

void InheritPointers(const std::map<std::string, std::string>& pointers, ManifestSummary& save) {
  if (!save.suspect().empty()) return;
  std::map<std::string, std::string> all(save.pointers().begin(), save.pointers().end());
  for (const auto& [name, content] : pointers) {
    if (!all.try_emplace(name, content).second) continue;
    if (CheckPointers(save.tag(), all).ok()) {
      (*save.mutable_pointers())[name] = content;
    } else {
      all.erase(name);
    }
  }
}

absl::StatusOr<Manifest> ManifestOfParts(const std::string& tag, int64_t sequence,
                                         const ManifestSummary& summary, const std::vector<PartRecord>& parts,
                                         int64_t now_us) {
  if (summary.tag() != tag || summary.sequence() != sequence) {
    return InvalidArgument(absl::StrCat("the summary is of ", summary.tag(), " sequence ", summary.sequence(),
                                        ", and ", tag, " sequence ", sequence, " is in flight"));
  }
  if (parts.size() != static_cast<size_t>(std::max(summary.world_size(), 0))) {
    return InvalidArgument(
        absl::StrCat(tag, " has ", parts.size(), " parts, and its world size is ", summary.world_size()));
  }
  Manifest manifest{summary, {}};
  std::set<int> ranks;
  int64_t size_bytes = 0;
  for (const PartRecord& part : parts) {
    if (part.sequence() != summary.sequence() || part.chunk_bytes() != summary.chunk_bytes() ||
        !ranks.insert(part.rank()).second) {
      return InvalidArgument(absl::StrCat("the part of rank ", part.rank(), " (sequence ", part.sequence(),
                                          ", chunks of ", part.chunk_bytes(),
                                          " bytes) is there twice or is not of ", tag, " (sequence ",
                                          summary.sequence(), ", chunks of ", summary.chunk_bytes(), ")"));
    }
    for (const FileRecord& file : part.files()) {
      FileRecord& added = *manifest.body.add_files();
      added = file;
      added.set_rank(part.rank());
      size_bytes += file.size_bytes();
    }
  }
  std::sort(manifest.body.mutable_files()->begin(), manifest.body.mutable_files()->end(),
            [](const FileRecord& a, const FileRecord& b) { return a.path() < b.path(); });
  manifest.summary.set_format_version(kFormatVersion);
  manifest.summary.set_size_bytes(size_bytes);
  manifest.summary.set_file_count(manifest.body.files_size());
  // The daemon that has saved it says when; recovery does not know that.
  if (summary.commit_time_us() == 0) manifest.summary.set_commit_time_us(now_us);
  return manifest;
}

}  // namespace ckptd
