#include "daemon/engine/retention/outcome_history.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"

namespace ckptd {
namespace {

constexpr Duration kRetryInterval = std::chrono::seconds(1);

}  // namespace

OutcomeHistory::OutcomeHistory(Clock* clock, EngineObserver* observer, Hooks hooks)
    : clock_(clock), observer_(observer), hooks_(std::move(hooks)) {}

void OutcomeHistory::Record(Run* run, const storage::v1::Outcome& outcome) {
  State& state = states_.Of(run);
  ++state.outcomes;
  ++state.writes;
  run->ledger->RecordOutcome(outcome, [this, run, number = state.outcomes](absl::Status written) {
    OnWritten(run, number, written);
  });
}

// `number`: how many outcomes were on disk after this write if it succeeded.
void OutcomeHistory::OnWritten(Run* run, int64_t number, const absl::Status& written) {
  State& state = states_.Of(run);
  --state.writes;
  if (written.ok()) {
    state.failed = false;
  } else {
    WarnOnce(run, written);
    state.again_at = clock_->Now() + kRetryInterval;
    const bool retention_waits =
        ReasonOf(written) != reason::kNoSpace;  // Retention frees the room that it lacks.
    hooks_.write_failed(run, retention_waits);
    if (retention_waits) return;
  }
  state.on_disk = std::max(state.on_disk, number);
  hooks_.retention_may_continue(run);
}

void OutcomeHistory::WarnOnce(Run* run, const absl::Status& why) {
  if (std::exchange(states_.Of(run).failed, true)) return;
  observer_->OnWarning(absl::StrCat("the history of ", run->path, " could not be written: ",
                                    std::string(why.message()), "; retention waits, and it is tried again"));
}

bool OutcomeHistory::IsOnDisk(const Run& run) const {
  const State& state = states_.Of(&run);
  return state.on_disk == state.outcomes;
}

bool OutcomeHistory::MayFreeRoom(const Run& run) const {
  return states_.Of(&run).writes > 0 || !IsOnDisk(run);
}

bool OutcomeHistory::IsWriting(const Run& run) const { return !IsOnDisk(run) && !states_.Of(&run).failed; }

bool OutcomeHistory::IsIdle(const Run& run) const { return !MayFreeRoom(run) && !states_.Of(&run).again_at; }

void OutcomeHistory::OnTick(Run* run, Instant now) {
  State& state = states_.Of(run);
  if (!state.again_at || now < *state.again_at) return;
  state.again_at.reset();
  ++state.writes;
  run->ledger->WriteHistory(
      [this, run, number = state.outcomes](absl::Status written) { OnWritten(run, number, written); });
}

}  // namespace ckptd
