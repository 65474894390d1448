#include "daemon/engine/save/earlier_saves.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/engine/run/wire.h"

namespace ckptd {
namespace {

v1::Checkpoint NotEnded(const Run& run, const SaveId& save) {
  v1::Checkpoint checkpoint;
  checkpoint.set_name(absl::StrCat(run.name, "/checkpoints/", save.tag));
  checkpoint.set_run(run.name);
  checkpoint.set_tag(save.tag);
  checkpoint.set_attempt(save.attempt);
  checkpoint.set_ordinal(save.ordinal);
  checkpoint.set_level(v1::STAGED);
  return checkpoint;
}

storage::v1::Outcome OutcomeOf(const SaveId& save, const Authority::Decision& end, int64_t now_unix_us) {
  storage::v1::Outcome outcome;
  outcome.set_tag(save.tag);
  outcome.set_ordinal(save.ordinal);
  outcome.set_attempt(save.attempt);
  outcome.set_sequence(end.sequence);
  outcome.set_level(end.phase == Authority::Decision::kCommitted ? v1::COMMITTED
                    : end.phase == Authority::Decision::kUnknown ? v1::INDETERMINATE
                                                                 : LevelOfEnd(end.end));
  outcome.set_time_us(now_unix_us);
  if (end.end.ok()) return outcome;
  const v1::SaveError error = ErrorToWire(end.end);
  outcome.set_reason(error.reason());
  outcome.set_code(error.code());
  outcome.set_message(error.message());
  *outcome.mutable_ranks() = error.ranks();
  return outcome;
}

}  // namespace

void EarlierSaves::Find(Run* run, const SaveId& save, Instant deadline, Found found) {
  Waiters& waiters = states_.Of(run);
  const auto [entry, is_new] = waiters.try_emplace(save);
  entry->second.push_back({deadline, std::move(found)});
  if (!is_new) return;
  run->authority->WhenEnded(
      save, [this, run, save](const std::optional<Authority::Decision>& end) { OnEnded(run, save, end); });
}

void EarlierSaves::OnEnded(Run* run, const SaveId& save, const std::optional<Authority::Decision>& end) {
  auto entry = states_.Of(run).extract(save);
  if (end && !ended_->Past(*run, save)) record_(run, OutcomeOf(save, *end, clock_->UnixMicros()));
  for (Waiter& waiter : entry.mapped()) waiter.found(ended_->Past(*run, save));
}

void EarlierSaves::OnTick(Instant now) {
  std::vector<std::pair<Found, v1::Checkpoint>> late;
  for (auto& [run, waiters] : states_) {
    for (auto& [save, waiting] : waiters) {
      std::vector<Waiter> still;
      for (Waiter& waiter : std::exchange(waiting, {})) {
        if (now < waiter.deadline) {
          still.push_back(std::move(waiter));
        } else {
          late.emplace_back(std::move(waiter.found), NotEnded(*run, save));
        }
      }
      waiting = std::move(still);
    }
  }
  for (auto& [found, checkpoint] : late) found(std::move(checkpoint));
}

}  // namespace ckptd
