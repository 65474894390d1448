// TrashCollector empties the trash of each root: evicted checkpoints, replaced ones and failed saves. It runs
// one RootIo::EmptyTrash at a time for a root and retries after a failure. Whole checkpoints stay for a grace
// period, and may be brought back meanwhile, unless a save needs their room.
#ifndef CKPTD_DAEMON_ENGINE_RETENTION_TRASH_COLLECTOR_H_
#define CKPTD_DAEMON_ENGINE_RETENTION_TRASH_COLLECTOR_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/engine/run/run.h"
#include "daemon/engine/run/run_states.h"
#include "daemon/engine/seams/engine_types.h"
#include "storage/base/clock.h"
#include "storage/commit/steps/types.h"

namespace ckptd {

class TrashCollector {
 public:
  struct Hooks {
    std::function<bool(const Run&)> has_leases;
    // A pass is over, perhaps in vain: the free space of the device may have changed.
    std::function<void(Run*)> room_changed;
    // The last pass that was asked for is over. Follows room_changed. `for_room`: MakeRoom asked for it.
    std::function<void(Run*, bool for_room)> emptied;
    // A checkpoint is back in the catalog.
    std::function<void(Run*, PointerFiles)> undeleted = [](Run*, PointerFiles) {};
    // It is not known whether a checkpoint is back: only a scan can tell.
    std::function<void(Run*)> needs_scan = [](Run*) {};
  };
  TrashCollector(Duration grace, Clock* clock, EngineObserver* observer, Hooks hooks);

  // Counts also for what is in the trash, from its next pass on.
  void SetGrace(Duration grace) { grace_ = grace; }

  // Starts a pass, or lets another one follow the pass that is under way.
  void Empty(Run* run);
  // As Empty, but the pass also removes checkpoints in their grace period, the oldest first, until it has
  // removed `bytes`. Returns how many of these bytes the trash has.
  int64_t MakeRoom(Run* run, int64_t bytes);
  bool IsEmptying(const Run& run) const { return states_.Of(&run).emptying; }
  bool MayFreeRoom(const Run& run) const { return IsEmptying(run) || bytes(run) > 0; }
  // Whether the last pass found checkpoints in their grace period.
  bool HasInGrace(const Run& run) const { return states_.Of(&run).in_grace_bytes > 0; }
  // Whether closing the run would neither lose state nor delay the emptying of its trash.
  bool IsIdle(const Run& run) const;

  int64_t bytes(const Run& run) const { return states_.Of(&run).bytes; }
  void SetBytes(const Run* run, int64_t bytes) { states_.Of(run).bytes = bytes; }
  void AddBytes(const Run* run, int64_t bytes) { states_.Of(run).bytes += bytes; }

  // Brings a checkpoint back from the trash to its tag, and pins it. `sequence` 0: the one of the tag with
  // the highest sequence. TAG_TAKEN if a checkpoint or a save under way has the tag; otherwise the errors of
  // RootStore::Undelete.
  void Undelete(Run* run, const std::string& tag, int64_t sequence, Reply<CommittedCheckpoint> reply);
  // Whether a checkpoint is being brought back to this tag. No save may take the tag meanwhile.
  bool IsUndeleting(const Run& run, const std::string& tag) const {
    return states_.Of(&run).undeleting.contains(tag);
  }
  // When the grace period of a checkpoint that was moved to the trash at this Unix time is over.
  int64_t PurgeTime(int64_t moved_us) const;

  void OnTick(Run* run, Instant now);
  void Forget(const Run* run) { states_.Forget(run); }

 private:
  struct State {
    int64_t bytes = 0;
    int64_t in_grace_bytes = 0;  // Of `bytes`, as the last pass found it.
    bool emptying = false;
    bool again = false;      // Asked for while a pass was under way.
    int64_t room_bytes = 0;  // How many bytes the next pass is to free.
    bool stuck = false;      // The last pass failed, and the warning was given.
    std::optional<Instant> again_at;
    std::set<std::string> undeleting;  // Tags.
  };
  void OnEmptied(Run* run, const TrashTerms& terms, absl::StatusOr<TrashLeft> left);
  void NoteLeft(Run* run, const TrashLeft& left);
  void WarnOnce(Run* run, const absl::Status& why);
  absl::Status CheckFree(const Run& run, const std::string& tag) const;
  void OnUndeleted(Run* run, const std::string& tag, absl::StatusOr<Undeleted> undeleted,
                   Reply<CommittedCheckpoint> reply);

  Duration grace_;
  Clock* const clock_;
  EngineObserver* const observer_;
  const Hooks hooks_;
  RunStates<State> states_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_RETENTION_TRASH_COLLECTOR_H_
