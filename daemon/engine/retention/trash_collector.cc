#include "daemon/engine/retention/trash_collector.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "daemon/engine/run/save.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"
#include "storage/commit/checkpoint/scan.h"

namespace ckptd {
namespace {

using std::chrono::microseconds;

constexpr Duration kRetryInterval = std::chrono::seconds(1);

}  // namespace

TrashCollector::TrashCollector(Duration grace, Clock* clock, EngineObserver* observer, Hooks hooks)
    : grace_(grace), clock_(clock), observer_(observer), hooks_(std::move(hooks)) {}

void TrashCollector::Empty(Run* run) {
  State& state = states_.Of(run);
  if (state.emptying) {
    state.again = true;
    return;
  }
  state.emptying = true;
  state.again = false;
  state.again_at.reset();
  const TrashTerms terms{.now_us = clock_->UnixMicros(),
                         .grace_us = grace_ / microseconds(1),
                         .room_bytes = std::exchange(state.room_bytes, 0)};
  run->coordinator_io->EmptyTrash(
      terms, [this, run, terms](absl::StatusOr<TrashLeft> left) { OnEmptied(run, terms, std::move(left)); });
}

int64_t TrashCollector::MakeRoom(Run* run, int64_t bytes) {
  State& state = states_.Of(run);
  state.room_bytes = std::max(state.room_bytes, bytes);
  Empty(run);
  return std::min(bytes, state.bytes);
}

void TrashCollector::OnEmptied(Run* run, const TrashTerms& terms, absl::StatusOr<TrashLeft> left) {
  State& state = states_.Of(run);
  state.emptying = false;
  if (left.ok()) {
    NoteLeft(run, *left);
  } else {
    WarnOnce(run, left.status());
    state.again_at = clock_->Now() + kRetryInterval;
  }
  hooks_.room_changed(run);
  if (state.again && left.ok()) return Empty(run);
  hooks_.emptied(run, terms.room_bytes > 0);
}

void TrashCollector::NoteLeft(Run* run, const TrashLeft& left) {
  State& state = states_.Of(run);
  state.bytes = left.bytes;
  state.in_grace_bytes = left.in_grace_bytes;
  state.stuck = false;
  if (left.in_grace_bytes > 0) state.again_at = clock_->Now() + microseconds(left.due_in_us);
  // A checkpoint with a lease is deleted when the lease is released. A ReadFile may outlive its lease: then
  // only a retry deletes the checkpoint.
  if (left.bytes > left.in_grace_bytes && !hooks_.has_leases(*run))
    state.again_at = clock_->Now() + kRetryInterval;
}

void TrashCollector::WarnOnce(Run* run, const absl::Status& why) {
  if (std::exchange(states_.Of(run).stuck, true)) return;
  observer_->OnWarning(absl::StrCat(
      "the trash of ", run->path, " cannot be emptied, which is tried again: ", std::string(why.message())));
}

bool TrashCollector::IsIdle(const Run& run) const {
  const State& state = states_.Of(&run);
  return !state.emptying && state.in_grace_bytes == 0 && state.undeleting.empty();
}

int64_t TrashCollector::PurgeTime(int64_t moved_us) const { return moved_us + grace_ / microseconds(1); }

// ---- bringing back

absl::Status TrashCollector::CheckFree(const Run& run, const std::string& tag) const {
  if (const CommittedCheckpoint* holder = run.catalog.FindTag(tag)) {
    const int64_t sequence = holder->summary.sequence();
    if (!run.catalog.evicting().contains(sequence)) return TagTakenError(tag, sequence);
    return MakeError(absl::StatusCode::kAlreadyExists, reason::kTagTaken,
                     absl::StrCat(tag, " is being moved to the trash; try again when it is there"),
                     {{"tag", tag}});
  }
  const bool saving = std::any_of(run.saves.begin(), run.saves.end(),
                                  [&tag](const auto& save) { return save.second->key.tag == tag; });
  if (!saving && !IsUndeleting(run, tag)) return absl::OkStatus();
  return MakeError(absl::StatusCode::kAlreadyExists, reason::kTagTaken,
                   absl::StrCat(tag, saving ? " is being saved; try again when that save has ended"
                                            : " is being brought back by another call"),
                   {{"tag", tag}});
}

void TrashCollector::Undelete(Run* run, const std::string& tag, int64_t sequence,
                              Reply<CommittedCheckpoint> reply) {
  if (absl::Status taken = CheckFree(*run, tag); !taken.ok()) return reply(taken);
  states_.Of(run).undeleting.insert(tag);
  run->coordinator_io->Undelete(
      tag, sequence, [this, run, tag, reply = std::move(reply)](absl::StatusOr<Undeleted> undeleted) mutable {
        OnUndeleted(run, tag, std::move(undeleted), std::move(reply));
      });
}

void TrashCollector::OnUndeleted(Run* run, const std::string& tag, absl::StatusOr<Undeleted> undeleted,
                                 Reply<CommittedCheckpoint> reply) {
  State& state = states_.Of(run);
  state.undeleting.erase(tag);
  if (!undeleted.ok()) {
    if (ReasonOf(undeleted.status()) == reason::kIndeterminate) hooks_.needs_scan(run);
    return reply(undeleted.status());
  }
  const int64_t bytes = undeleted->checkpoint.summary.size_bytes();
  state.bytes = std::max<int64_t>(0, state.bytes - bytes);
  state.in_grace_bytes = std::max<int64_t>(0, state.in_grace_bytes - bytes);
  run->catalog.Add(undeleted->checkpoint);
  hooks_.undeleted(run, std::move(undeleted->pointers));
  reply(std::move(undeleted->checkpoint));
}

void TrashCollector::OnTick(Run* run, Instant now) {
  const State& state = states_.Of(run);
  if (state.again_at && now >= *state.again_at) Empty(run);
}

}  // namespace ckptd
