// What is in a root that several nodes share, as one of them sees it while the others change it.
#ifndef CKPTD_STORAGE_COMMIT_SHARED_SHARED_SCAN_H_
#define CKPTD_STORAGE_COMMIT_SHARED_SHARED_SCAN_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/base/clock.h"
#include "storage/commit/checkpoint/scan.h"
#include "storage/commit/shared/run/look_again.h"
#include "storage/commit/shared/run/shared_layout.h"
#include "storage/commit/shared/save/shared_publish.h"
#include "storage/commit/steps/types.h"

namespace ckptd {

struct SharedRootScan {
  // By sequence, oldest first; without pins and marks of damage, which are in the record (shared_record.h).
  // The ledger may not have called the newest one COMMITTED yet: what it calls PUBLISHING is not durable
  // before FindShared has said so.
  std::map<int64_t, CommittedCheckpoint> checkpoints;
  std::vector<DamagedCheckpoint> damaged;
  std::vector<HalfRemoved> half_removed;  // The coordinator ends it: RemoveShared.
  std::vector<SharedInflight> in_flight;
  std::vector<SharedInflight> in_trash;
  std::vector<ForeignTag> foreign;  // Oldest first.
  int64_t highest_sequence = 0;     // Of everything that was found.
  int64_t highest_term = 0;         // Of the coordinators that have left a record or a directory.
};

// Takes no lock, recovers nothing and changes nothing.
class SharedScanner {
 public:
  // `layout` and `clock` must outlive it.
  SharedScanner(const SharedLayout* layout, Clock* clock, Duration staleness = kStaleness)
      : layout_(*layout), clock_(*clock), staleness_(staleness) {}

  // One look. LOOK_AGAIN: something looks damaged, or could not be looked at, as it may while another node
  // changes it. The caller looks again a little later, until the same directory has looked damaged, or
  // looking has failed, for as long as a node may see what is old; then that is the answer.
  // FAILED_PRECONDITION, reason NEWER_FORMAT, if a later ckptd has written a checkpoint. Errors of the disk
  // are returned at once, and say nothing of any checkpoint.
  absl::StatusOr<SharedRootScan> Look();

 private:
  // A directory that looks damaged.
  struct Suspicion {
    uint64_t device = 0;
    uint64_t inode = 0;
    std::string what;
    Instant since;
  };

  absl::StatusOr<SharedRootScan> LookOnce() const;
  absl::Status FindUnlisted(SharedRootScan& scan) const;
  absl::Status Confirm(SharedRootScan& scan);
  absl::Status NotYet(const absl::Status& error);

  const SharedLayout& layout_;
  Clock& clock_;
  const Duration staleness_;
  std::map<std::string, Suspicion> suspicions_;  // By tag, as of the last look.
  std::optional<Instant> failing_since_;
};

}  // namespace ckptd
#endif  // CKPTD_STORAGE_COMMIT_SHARED_SHARED_SCAN_H_
