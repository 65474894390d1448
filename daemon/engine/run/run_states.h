// State that one class of the engine keeps for each open run. Run itself holds only what several classes
// share.
#ifndef CKPTD_DAEMON_ENGINE_RUN_RUN_STATES_H_
#define CKPTD_DAEMON_ENGINE_RUN_RUN_STATES_H_

#include <map>

#include "daemon/engine/run/run.h"

namespace ckptd {

template <typename State>
class RunStates {
  // By name and not by address, so that a simulation of the same seed takes the same steps.
  struct ByName {
    bool operator()(const Run* a, const Run* b) const { return a->name < b->name; }
  };

 public:
  State& Of(const Run* run) { return states_[const_cast<Run*>(run)]; }
  // The default state if nothing was kept for the run yet.
  const State& Of(const Run* run) const {
    static const State* const none = new State();  // Never destroyed.
    const auto found = states_.find(const_cast<Run*>(run));
    return found == states_.end() ? *none : found->second;
  }
  // Call it before the Run object goes.
  void Forget(const Run* run) { states_.erase(const_cast<Run*>(run)); }

  // Pairs of Run* and State, of the runs for which something was kept.
  auto begin() { return states_.begin(); }
  auto end() { return states_.end(); }
  auto begin() const { return states_.begin(); }
  auto end() const { return states_.end(); }

 private:
  std::map<Run*, State, ByName> states_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_RUN_RUN_STATES_H_
