// EarlierSaves finds out how saves ended that an earlier daemon of this node had taken part in, and of which this
// one has no record: in a run of several nodes the others may have committed such a save, or may do so yet.
#ifndef CKPTD_DAEMON_ENGINE_SAVE_EARLIER_SAVES_H_
#define CKPTD_DAEMON_ENGINE_SAVE_EARLIER_SAVES_H_

#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "ckptd/v1/types.pb.h"
#include "daemon/engine/run/run.h"
#include "daemon/engine/run/run_states.h"
#include "daemon/engine/save/ended_saves.h"
#include "daemon/engine/seams/authority.h"
#include "daemon/engine/seams/save_id.h"
#include "storage/base/clock.h"

namespace ckptd {

// Used on the engine's thread.
class EarlierSaves {
 public:
  // Records how a save ended, so that EndedSaves::Past has it from then on.
  using Record = std::function<void(Run*, const storage::v1::Outcome&)>;
  EarlierSaves(Clock* clock, const EndedSaves* ended, Record record)
      : clock_(clock), ended_(ended), record_(std::move(record)) {}

  // How the save ended; at the deadline, as STAGED, because its end is not known yet; nullopt if the authority
  // of the run knows nothing of it.
  using Found = absl::AnyInvocable<void(std::optional<v1::Checkpoint>)>;
  void Find(Run* run, const SaveId& save, Instant deadline, Found found);

  // Whether somebody waits for the end of a save of the run.
  bool IsWaiting(const Run& run) const { return !states_.Of(&run).empty(); }
  void OnTick(Instant now);
  void Forget(const Run* run) { states_.Forget(run); }

 private:
  struct Waiter {
    Instant deadline;
    Found found;
  };
  using Waiters = std::map<SaveId, std::vector<Waiter>>;  // By the save of which the authority was asked.

  void OnEnded(Run* run, const SaveId& save, const std::optional<Authority::Decision>& end);

  Clock* const clock_;
  const EndedSaves* const ended_;
  const Record record_;
  RunStates<Waiters> states_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_SAVE_EARLIER_SAVES_H_
