#include "daemon/grpc/calls/watch_queue.h"

#include "storage/base/errors.h"

namespace ckptd {

absl::Status WatchQueue::Push(const v1::WatchResponse& event) {
  if (event.has_restore()) {  // Restore events are always progress.
    if (events_.size() < progress_limit_) events_.push_back(event);
    return absl::OkStatus();
  }
  const v1::Checkpoint& checkpoint = event.checkpoint();
  const Key key(checkpoint.name(), checkpoint.sequence());
  const auto known = levels_.find(key);
  const bool progress = known != levels_.end() && known->second == checkpoint.level();
  if (progress && events_.size() >= progress_limit_) return absl::OkStatus();
  if (events_.size() >= limit_) {
    return MakeError(
        absl::StatusCode::kResourceExhausted, "WATCHER_TOO_SLOW",
        "this watcher does not read its events fast enough; list the checkpoints, then watch again");
  }
  if (checkpoint.level() >= v1::COMMITTED) {
    levels_.erase(key);
  } else {
    levels_[key] = checkpoint.level();
  }
  events_.push_back(event);
  return absl::OkStatus();
}

std::optional<v1::WatchResponse> WatchQueue::Pop() {
  if (events_.empty()) return std::nullopt;
  v1::WatchResponse event = std::move(events_.front());
  events_.pop_front();
  return event;
}

}  // namespace ckptd
