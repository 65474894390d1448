#include "storage/commit/steps/commit_rules.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"
#include "storage/base/status_macros.h"
#include "storage/format/names.h"

namespace ckptd {

using storage::v1::ManifestSummary;

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

}  // namespace ckptd
