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

// Marks committed checkpoints as damaged, when the authority of the run has decided that for all nodes: in
// the catalog at once, and then on disk. Takes marks away likewise.
class DamageMarks {
 public:
  // What others do about a mark.
  struct Listeners {
    // The checkpoint is not offered any more.
    std::function<void(Run*, int64_t sequence)> marked;
    // The pointer files have changed: they skip damaged checkpoints.
    std::function<void(Run*, PointerFiles)> pointers_changed;
    // The root has recorded the mark, or that it was cleared; or could not.
    std::function<void(Run*, int64_t sequence)> recorded;
    // The mark is gone: the checkpoint counts for retention again.
    std::function<void(Run*)> cleared;
  };

  DamageMarks(Clock* clock, EngineObserver* observer, DescribeCheckpoint describe, Listeners listeners)
      : clock_(clock),
        observer_(observer),
        describe_(std::move(describe)),
        listeners_(std::move(listeners)) {}

  // The checkpoint is not offered once Authority::MarkDamaged has decided that: on one node, within this
  // call. `done` runs when the root has recorded it, or could not, or all nodes know it; not OK: they do not,
  // and the checkpoint is offered. A checkpoint that is marked already keeps the first description.
  void Mark(Run* run, int64_t sequence, storage::v1::Damage damage, DamageMarked done);
  // As Authority::Hooks::damage_changed.
  void OnChanged(Run* run, int64_t sequence, const std::optional<storage::v1::Damage>& damage,
                 absl::AnyInvocable<void()> recorded);

  // What a reader has found. NO_CHECKPOINT unless the tag has this sequence.
  void Report(Run* run, const std::string& tag, const v1::ReportDamageRequest& request,
              Reply<v1::ReportDamageResponse> reply);
  void Clear(Run* run, const std::string& tag, Reply<v1::Checkpoint> reply);

  // Whether nothing would be lost by closing the run.
  bool IsIdle(const Run& run) const { return asking_.Of(&run) == 0; }
  void OnRunClosed(Run* run) { asking_.Forget(run); }

 private:
  void MarkHere(Run* run, const storage::v1::Damage& damage);
  void AnswerCleared(Run* run, int64_t sequence, Reply<v1::Checkpoint> reply);
  // In the root. `recorded` may be null.
  void Record(Run* run, int64_t sequence, const std::string& tag,
              const std::optional<storage::v1::Damage>& damage, absl::AnyInvocable<void()> recorded);

  Clock* const clock_;
  EngineObserver* const observer_;
  const DescribeCheckpoint describe_;
  const Listeners listeners_;
  RunStates<int> asking_;  // Questions to the authority that are not answered.
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_READING_DAMAGE_MARKS_H_
