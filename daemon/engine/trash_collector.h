// TrashCollector empties the trash of each root: evicted checkpoints, replaced ones and failed saves. It runs
// one RootIo::EmptyTrash at a time for a root and retries after a failure.
#ifndef CKPTD_DAEMON_ENGINE_TRASH_COLLECTOR_H_
#define CKPTD_DAEMON_ENGINE_TRASH_COLLECTOR_H_

#include <cstdint>
#include <functional>
#include <optional>

#include "absl/status/status.h"
#include "daemon/engine/engine_types.h"
#include "daemon/engine/run.h"
#include "daemon/engine/run_states.h"
#include "storage/base/clock.h"

namespace ckptd {

class TrashCollector {
 public:
  struct Hooks {
    std::function<bool(const Run&)> has_leases;
    // A pass is over, perhaps in vain: the free space of the device may have changed.
    std::function<void(Run*)> room_changed;
    // The last pass that was asked for is over. Follows room_changed.
    std::function<void(Run*)> emptied;
  };
  TrashCollector(Clock* clock, EngineObserver* observer, Hooks hooks);

  // Starts a pass, or lets another one follow the pass that is under way.
  void Empty(Run* run);
  bool IsEmptying(const Run& run) const { return states_.Of(&run).emptying; }
  bool MayFreeRoom(const Run& run) const { return IsEmptying(run) || bytes(run) > 0; }

  int64_t bytes(const Run& run) const { return states_.Of(&run).bytes; }
  void SetBytes(const Run* run, int64_t bytes) { states_.Of(run).bytes = bytes; }
  void AddBytes(const Run* run, int64_t bytes) { states_.Of(run).bytes += bytes; }

  void OnTick(Run* run, Instant now);
  void Forget(const Run* run) { states_.Forget(run); }

 private:
  struct State {
    int64_t bytes = 0;
    bool emptying = false;
    bool again = false;  // Asked for while a pass was under way.
    bool stuck = false;  // The last pass failed, and the warning was given.
    std::optional<Instant> again_at;
  };
  void OnEmptied(Run* run, absl::StatusOr<int64_t> left);
  void WarnOnce(Run* run, const absl::Status& why);

  Clock* const clock_;
  EngineObserver* const observer_;
  const Hooks hooks_;
  RunStates<State> states_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_TRASH_COLLECTOR_H_
