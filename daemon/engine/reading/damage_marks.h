// Damage of committed checkpoints: what proves it, and marking checkpoints as damaged.
#ifndef CKPTD_DAEMON_ENGINE_READING_DAMAGE_MARKS_H_
#define CKPTD_DAEMON_ENGINE_READING_DAMAGE_MARKS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "ckptd/v1/messages.pb.h"
#include "ckptd/v1/types.pb.h"
#include "daemon/engine/run/run.h"
#include "daemon/engine/run/run_states.h"
#include "daemon/engine/run/wire.h"
#include "daemon/engine/seams/engine_types.h"
#include "storage/base/clock.h"

namespace ckptd {

// True if the error with which a checkpoint could not be opened or read proves damage, not an I/O fault.
// False while the root is being scanned: what is where is unknown then.
bool IndicatesDamage(const Run& run, const absl::Status& error);
// Damage as the error describes it. The caller adds the checkpoint and the time.
storage::v1::Damage DamageFromError(const absl::Status& error);

// CHECKPOINT_DAMAGED for a rank that resumes from this checkpoint.
absl::Status DamageError(const storage::v1::Damage& damage);
// CHECKPOINT_DAMAGED for a caller who gets nothing because these checkpoints are damaged. `advice` says what
// follows from that.
absl::Status DamagedError(const Run& run, const std::vector<v1::Checkpoint>& damaged,
                          const std::string& advice);
// The damaged checkpoints that are newer than `sequence`, newest first, and all whose manifests are
// unreadable.
std::vector<v1::Checkpoint> DamagedAfter(const Run& run, int64_t sequence,
                                         const DescribeCheckpoint& describe);

// What an attempt, or a reader of the latest checkpoint, passes over for `sequence`: the newer checkpoints
// that are damaged or suspect, newest first, and all whose manifests are unreadable.
std::vector<v1::Checkpoint> PassedOver(const Run& run, int64_t sequence, const DescribeCheckpoint& describe);
// SUSPECT for a caller who gets nothing because this checkpoint is suspect.
absl::Status SuspectError(const CommittedCheckpoint& suspect, const std::string& advice);

// Marks committed checkpoints as damaged, in the catalog at once and then on disk, and takes marks away. In a
// shared run, what is damaged is known to all nodes first: nothing is marked before they know it, and what
// they know counts here, whichever node has found it.
class DamageMarks {
 public:
  // What others do about a mark.
  struct Listeners {
    // The checkpoint is not offered any more.
    std::function<void(Run*, int64_t sequence)> marked;
    // The pointer files have changed: they skip damaged checkpoints.
    std::function<void(Run*, PointerFiles)> pointers_changed;
    // The mark is on disk, or could not be written there. In a shared run: all nodes know it, or know that it
    // was cleared.
    std::function<void(Run*, int64_t sequence)> recorded;
    // The mark is gone: the checkpoint counts for retention again.
    std::function<void(Run*)> cleared;
  };

  DamageMarks(Clock* clock, EngineObserver* observer, DescribeCheckpoint describe, Listeners listeners)
      : clock_(clock),
        observer_(observer),
        describe_(std::move(describe)),
        listeners_(std::move(listeners)) {}

  // From now on the checkpoint is not offered. `done` runs when that is on disk, or cannot be written there.
  // A checkpoint that is marked already keeps the first description. In a shared run it is not offered once
  // all nodes know that; not OK: they do not, and it is (SharedRun::MarkDamaged).
  void Mark(Run* run, int64_t sequence, storage::v1::Damage damage, DamageMarked done);
  // As SharedRun::Hooks::damage_changed.
  void OnChanged(Run* run, int64_t sequence, const std::optional<storage::v1::Damage>& damage);

  // What a reader has found. NO_CHECKPOINT unless the tag has this sequence.
  void Report(Run* run, const std::string& tag, const v1::ReportDamageRequest& request,
              Reply<v1::ReportDamageResponse> reply);
  void Clear(Run* run, const std::string& tag, Reply<v1::Checkpoint> reply);

  // Whether nothing would be lost by closing the run.
  bool IsIdle(const Run& run) const { return telling_.Of(&run) == 0; }
  void OnRunClosed(Run* run) { telling_.Forget(run); }

 private:
  void MarkHere(Run* run, const storage::v1::Damage& damage);
  void TellNodes(Run* run, const storage::v1::Damage& damage, DamageMarked done);
  void ClearOnAllNodes(Run* run, int64_t sequence, Reply<v1::Checkpoint> reply);
  void AnswerCleared(Run* run, int64_t sequence, Reply<v1::Checkpoint> reply);
  void Recorded(Run* run, int64_t sequence, const std::string& tag, absl::StatusOr<PointerFiles> set);

  Clock* const clock_;
  EngineObserver* const observer_;
  const DescribeCheckpoint describe_;
  const Listeners listeners_;
  RunStates<int> telling_;  // Questions to the other nodes that are not answered.
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_READING_DAMAGE_MARKS_H_
