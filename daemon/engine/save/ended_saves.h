// EndedSaves remembers how saves ended, for late questions: the last saves of this daemon, and the failures
// that the run's history had when its root was opened.
#ifndef CKPTD_DAEMON_ENGINE_SAVE_ENDED_SAVES_H_
#define CKPTD_DAEMON_ENGINE_SAVE_ENDED_SAVES_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ckptd/v1/types.pb.h"
#include "daemon/engine/run/run.h"
#include "daemon/engine/run/run_states.h"
#include "daemon/engine/run/save.h"

namespace ckptd {

class EndedSaves {
 public:
  struct Hooks {
    std::function<v1::Checkpoint(const Save&)> describe_save;
    std::function<v1::Checkpoint(const Run&, const CommittedCheckpoint&)> describe_committed;
  };
  explicit EndedSaves(Hooks hooks) : hooks_(std::move(hooks)) {}

  // The parts of the save stay until OnTick, because callers may still hold references to them.
  void Add(std::unique_ptr<Save> save);
  // The last saves only; nullptr if the save is not one of them.
  const Save* Find(const Run* run, const SaveId& key) const;
  const Save* FindNewest(const Run* run, const std::string& tag) const;
  // How a save ended: as this daemon remembers it, or as the committed checkpoint or the history says.
  // nullopt if the save is in flight or unknown.
  std::optional<v1::Checkpoint> Past(const Run& run, const SaveId& key) const;

  // Failed saves, newest last.
  const std::deque<v1::Checkpoint>& failures(const Run& run) const { return states_.Of(&run).failures; }
  void AddFailure(const Run* run, v1::Checkpoint failure);
  // Forgets that the attempt's save of this tag was lost with an earlier daemon (a failure without ordinal):
  // its trainers have offered it again, or have said themselves that it is lost. Returns the sequence that it
  // had; 0 if no such failure is known.
  int64_t ForgetLost(const Run* run, int64_t attempt, const std::string& tag);

  // Replaces the parts of saves that have ended by a summary.
  void OnTick();
  void Forget(const Run* run);

 private:
  struct State {
    std::deque<std::unique_ptr<Save>> saves;  // Newest last.
    std::deque<v1::Checkpoint> failures;
  };
  const Hooks hooks_;
  RunStates<State> states_;
  std::vector<Save*> whole_;  // Those that have their parts still.
};

// How a save ends that ends with this error.
v1::Level LevelOfEnd(const absl::Status& end);
// ALREADY_EXISTS, reason SAVE_CONFLICT.
absl::Status CommittedAlready(const SaveId& id);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_SAVE_ENDED_SAVES_H_
