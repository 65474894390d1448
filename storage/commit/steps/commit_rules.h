// What a save may replace, and what its manifest takes over: one list for a root of one node (publish.h) and
// for one that several nodes share (shared_publish.h, shared_manifest.h).
#ifndef CKPTD_STORAGE_COMMIT_STEPS_COMMIT_RULES_H_
#define CKPTD_STORAGE_COMMIT_STEPS_COMMIT_RULES_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "storage/commit/checkpoint/scan.h"
#include "storage/commit/steps/types.h"
#include "storage/format/manifest.h"

namespace ckptd {

// Whether any save may take the place of what is at its tag. ALREADY_EXISTS, reason TAG_FOREIGN;
// FAILED_PRECONDITION, reason PINNED. `pinned`: what is there is.
absl::Status CheckTargetIsFree(const std::string& tag, const Target& target, bool pinned);
// Whether this save may. Also ABORTED, reason SUPERSEDED, if a younger save of the tag was committed first;
// FAILED_PRECONDITION, reason SUSPECT, if the save is suspect and what is there is not.
absl::Status CheckMayReplace(const Target& target, bool pinned, const storage::v1::ManifestSummary& save);
// True for these errors: no later try changes them.
bool IsRefusal(const absl::Status& status);

// Adds what one part says of its save. What the first part says counts; the save is suspect if any part is,
// and has the pointers of all.
void MergePart(const storage::v1::ManifestSummary& part, storage::v1::ManifestSummary& save);
// The commit gets its time, and no checkpoint seems to have been begun before one of a lower sequence, whatever the
// clocks of their nodes show: without the root, as in a bucket, these times tell which one is the newest.
void SetTimes(const CommitTimes& times, storage::v1::ManifestSummary& save);
// After all parts: a suspect checkpoint is not the one that other programs are to find.
void EndMerge(storage::v1::ManifestSummary& save);
// Adds those of these pointers that the save does not name itself, as long as its manifest has room.
void InheritPointers(const std::map<std::string, std::string>& pointers, storage::v1::ManifestSummary& save);

// The manifest of the save of this tag and sequence, whose parts have files that are durable. INVALID_ARGUMENT
// unless there is one part for each rank, and all are of this save. `now_us`: its commit time, if `summary` names
// none.
absl::StatusOr<Manifest> ManifestOfParts(const std::string& tag, int64_t sequence,
                                         const storage::v1::ManifestSummary& summary,
                                         const std::vector<storage::v1::PartRecord>& parts, int64_t now_us);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_COMMIT_STEPS_COMMIT_RULES_H_
