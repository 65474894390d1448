// Types that the parts of storage/commit share with each other and with their users.
#ifndef CKPTD_STORAGE_COMMIT_STEPS_TYPES_H_
#define CKPTD_STORAGE_COMMIT_STEPS_TYPES_H_

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
  std::optional<storage::v1::Damage> damage =
      std::nullopt;  // Set: a reader found that the bytes are not what was saved.
};

// A directory with a damaged manifest of ckptd. It stays where it is.
struct DamagedCheckpoint {
  std::string tag;
  absl::Status status;  // What is wrong with the manifest.
};

// In a root of several nodes: what was a checkpoint until its removal began, and has files left.
struct HalfRemoved {
  std::string tag;
  int64_t sequence = 0;
  uint64_t inode = 0;  // Of its directory: a checkpoint that is put back at the tag has another one.
};

// What the ledger has fixed of a save of several nodes when it is published. Unix time in microseconds.
struct CommitTimes {
  int64_t earlier_us = 0;  // Of the commit before it; 0: not known.
  int64_t this_us = 0;     // Of this one; later than that.
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

// A whole checkpoint in the trash: it was evicted, deleted, or replaced by a re-save of its tag.
struct TrashedCheckpoint {
  CommittedCheckpoint checkpoint = {};  // As it was, but not pinned.
  int64_t moved_us = 0;                 // When it was moved there: Unix time by the file system's clock.
};

// What a pass over the trash removes: everything but whole checkpoints in their grace period.
struct TrashTerms {
  int64_t now_us = 0;      // Unix time.
  int64_t grace_us = 0;    // 0: nothing has a grace period.
  int64_t room_bytes = 0;  // The oldest of those, too, until the pass has removed so many bytes.
};

// What a pass has left.
struct TrashLeft {
  int64_t bytes = 0;
  int64_t in_grace_bytes = 0;  // Of these, those of checkpoints in their grace period.
  int64_t due_in_us = 0;       // How long the first of these still is. 0: there is none.
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
  std::set<int64_t> holders = {};          // Sequences that a pointer names. Retention keeps them.
  std::vector<std::string> warnings = {};  // One for each pointer that could not be written.
  // False: the files were not read, because another node writes them (the coordinator of a shared root). Then
  // `holders` says nothing, and no checkpoint may be removed by it.
  bool known = true;
};
// A checkpoint that is back from the trash.
struct Undeleted {
  CommittedCheckpoint checkpoint;
  PointerFiles pointers;
};
struct PublishResult {
  PublishOutcome outcome;
  absl::Status status;         // OK with kCommitted.
  PointerFiles pointers = {};  // With kCommitted.
  // With kCommitted: checkpoints that this store has not published have appeared in the root since its last
  // scan.
  bool root_has_new_checkpoints = false;
  int64_t highest_new_sequence = 0;  // Of these; 0: none can be read.
  // With kFailed: nothing was changed, because something necessary could not be read, or because the root is
  // read-only until Rescan. Publish may be called again with the same in-flight directory.
  bool retryable = false;
};

}  // namespace ckptd
#endif  // CKPTD_STORAGE_COMMIT_STEPS_TYPES_H_
