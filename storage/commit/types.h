// Types that the parts of storage/commit share with each other and with their users.
#ifndef CKPTD_STORAGE_COMMIT_TYPES_H_
#define CKPTD_STORAGE_COMMIT_TYPES_H_

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "storage/fs/file_system.h"

namespace ckptd {

// A committed checkpoint, as the scan found it.
struct CommittedCheckpoint {
  storage::v1::ManifestSummary summary;
  bool pinned = false;
  std::optional<storage::v1::Damage> damage;  // Set: a reader found that the bytes are not what was saved.
};

// A directory with a damaged manifest of ckptd. It stays where it is.
struct DamagedCheckpoint {
  std::string tag;
  absl::Status status;  // What is wrong with the manifest.
};

// What recovery did with a save in flight, for the log and the run's history.
struct RecoveredSave {
  std::string tag;
  int64_t sequence = 0;
  bool published = false;  // False: moved to trash.
  std::string why;         // "complete", "part 1 of 2 is missing", "an older generation", ...
  // The directory held the checkpoint that a re-save of the tag had replaced: no save was lost.
  bool replaced = false;
};

struct Inflight {
  std::string name;  // Beneath inflight/.
  std::string tag;
  int64_t sequence = 0;
  ScopedHandle dir;
};

enum class PublishOutcome {
  kCommitted,      // The rename was done and both parents are synced.
  kFailed,         // Nothing was published; `status` says why. The caller discards the in-flight directory.
  kIndeterminate,  // The rename was done, but a sync after it failed. The root is read-only until Rescan.
};
// The state of the pointer files (docs/design.md, step 6).
struct PointerFiles {
  std::set<int64_t> holders;          // Sequences that a pointer names. Retention keeps them.
  std::vector<std::string> warnings;  // One for each pointer that could not be written.
};
struct PublishResult {
  PublishOutcome outcome;
  absl::Status status;         // OK with kCommitted.
  PointerFiles pointers = {};  // With kCommitted.
  // With kFailed: nothing was changed, because something necessary could not be read, or because the root is
  // read-only until Rescan. Publish may be called again with the same in-flight directory.
  bool retryable = false;
};

}  // namespace ckptd
#endif  // CKPTD_STORAGE_COMMIT_TYPES_H_
