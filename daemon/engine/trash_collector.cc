#include "daemon/engine/trash_collector.h"

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace ckptd {
namespace {

constexpr Duration kRetryInterval = std::chrono::seconds(1);

}  // namespace

TrashCollector::TrashCollector(Clock* clock, EngineObserver* observer, Hooks hooks)
    : clock_(clock), observer_(observer), hooks_(std::move(hooks)) {}

void TrashCollector::Empty(Run* run) {
  State& state = states_.Of(run);
  if (state.emptying) {
    state.again = true;
    return;
  }
  state.emptying = true;
  state.again = false;
  state.again_at.reset();
  run->io->EmptyTrash([this, run](absl::StatusOr<int64_t> left) { OnEmptied(run, std::move(left)); });
}

void TrashCollector::OnEmptied(Run* run, absl::StatusOr<int64_t> left) {
  State& state = states_.Of(run);
  state.emptying = false;
  if (left.ok()) {
    state.bytes = *left;
    state.stuck = false;
    // A checkpoint with a lease is deleted when the lease is released. A ReadFile may outlive its lease: then
    // only a retry deletes the checkpoint.
    if (*left > 0 && !hooks_.has_leases(*run)) state.again_at = clock_->Now() + kRetryInterval;
  } else {
    WarnOnce(run, left.status());
    state.again_at = clock_->Now() + kRetryInterval;
  }
  hooks_.room_changed(run);
  if (state.again && left.ok()) return Empty(run);
  hooks_.emptied(run);
}

void TrashCollector::WarnOnce(Run* run, const absl::Status& why) {
  if (std::exchange(states_.Of(run).stuck, true)) return;
  observer_->OnWarning(absl::StrCat(
      "the trash of ", run->path, " cannot be emptied, which is tried again: ", std::string(why.message())));
}

void TrashCollector::OnTick(Run* run, Instant now) {
  const State& state = states_.Of(run);
  if (state.again_at && now >= *state.again_at) Empty(run);
}

}  // namespace ckptd
