// The values that the parts of storage/commit hand to each other and to their users.
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

// A committed checkpoint as the scan found it.
struct CommittedCheckpoint {
  storage::v1::ManifestSummary summary;
  bool pinned = false;
  std::optional<storage::v1::Damage> damage;  // It is not what was saved, as a reader has found.
};

// A directory whose manifest is ours and damaged. It is left where it is.
struct DamagedCheckpoint {
  std::string tag;
  absl::Status status;  // What is wrong with the manifest.
};

// What Recover did, for the log and for the run's history.
struct RecoveredSave {
  std::string tag;
  int64_t sequence = 0;
  bool published = false;  // Else: moved to trash.
  std::string why;         // "complete", "part 1 of 2 is missing", "an older generation", ...
};

struct Inflight {
  std::string name;  // Under inflight/.
  std::string tag;
  int64_t sequence = 0;
  ScopedHandle dir;
};

enum class PublishOutcome {
  kCommitted,      // Renamed and both parents synced.
  kFailed,         // Nothing was published. `status` says why. The caller discards the in-flight directory.
  kIndeterminate,  // Renamed, but a sync after it failed: the root is read-only until Rescan.
};
// What became of the pointer files (docs/design.md, step 6).
struct PointerFiles {
  std::set<int64_t> holders;          // Sequences that a pointer names: retention leaves them.
  std::vector<std::string> warnings;  // Of each that could not be written, for people.
};
struct PublishResult {
  PublishOutcome outcome;
  absl::Status status;         // OK with kCommitted.
  PointerFiles pointers = {};  // With kCommitted.
  // With kFailed: nothing was changed, for something could not be read that must be known, or the root is
  // read-only until Rescan. Publish may be called again then, with the same in-flight directory.
  bool retryable = false;
};

}  // namespace ckptd
#endif  // CKPTD_STORAGE_COMMIT_TYPES_H_
