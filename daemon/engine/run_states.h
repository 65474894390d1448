// State that one class of the engine keeps for each open run. Run itself holds only what several classes
// share.
#ifndef CKPTD_DAEMON_ENGINE_RUN_STATES_H_
#define CKPTD_DAEMON_ENGINE_RUN_STATES_H_

#include <map>

namespace ckptd {

struct Run;

template <typename State>
class RunStates {
 public:
  State& Of(const Run* run) { return states_[run]; }
  // The default state if nothing was kept for the run yet.
  const State& Of(const Run* run) const {
    static const State none{};
    const auto found = states_.find(run);
    return found == states_.end() ? none : found->second;
  }
  // Call it before the Run object goes.
  void Forget(const Run* run) { states_.erase(run); }

 private:
  std::map<const Run*, State> states_;  // Never iterated: the order of addresses differs from run to run.
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_RUN_STATES_H_
