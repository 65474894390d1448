// OutcomeHistory writes how saves ended into the run's ledger, and repeats a write that failed.
//
// Retention waits for the history: a checkpoint may be evicted only when the history on disk has the outcome
// of the save that replaces it. Otherwise a daemon that is killed may leave neither the checkpoint nor its
// outcome, and a late rank would be told that its save was lost.
#ifndef CKPTD_DAEMON_ENGINE_RETENTION_OUTCOME_HISTORY_H_
#define CKPTD_DAEMON_ENGINE_RETENTION_OUTCOME_HISTORY_H_

#include <cstdint>
#include <functional>
#include <optional>

#include "absl/status/status.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "daemon/engine/run/run.h"
#include "daemon/engine/run/run_states.h"
#include "daemon/engine/seams/engine_types.h"
#include "storage/base/clock.h"

namespace ckptd {

class OutcomeHistory {
 public:
  struct Hooks {
    // Retention may go on: the history is on disk, or the disk is full and only retention can make room.
    std::function<void(Run*)> retention_may_continue;
    // A write failed, and will be repeated. `retention_waits`: whether retention waits until then.
    std::function<void(Run*, bool retention_waits)> write_failed;
  };
  OutcomeHistory(Clock* clock, EngineObserver* observer, Hooks hooks);

  void Record(Run* run, const storage::v1::Outcome& outcome);
  // Whether every outcome is on disk.
  bool IsOnDisk(const Run& run) const;
  // Whether a write is under way or about to be repeated: retention continues after it and may free disk
  // space.
  bool MayFreeRoom(const Run& run) const;
  // Whether the first write of some outcome is under way. False while a failed write waits for its
  // repetition.
  bool IsWriting(const Run& run) const;
  // Whether no write is under way and none is to be repeated.
  bool IsIdle(const Run& run) const;

  void OnTick(Run* run, Instant now);
  void Forget(const Run* run) { states_.Forget(run); }

 private:
  struct State {
    int64_t outcomes = 0, on_disk = 0;  // on_disk <= outcomes.
    int writes = 0;                     // Under way.
    bool failed = false;                // The last write failed, and the warning was given.
    std::optional<Instant> again_at;
  };
  void OnWritten(Run* run, int64_t number, const absl::Status& written);
  void WarnOnce(Run* run, const absl::Status& why);

  Clock* const clock_;
  EngineObserver* const observer_;
  const Hooks hooks_;
  RunStates<State> states_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_RETENTION_OUTCOME_HISTORY_H_
