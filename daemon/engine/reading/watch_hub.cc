#include "daemon/engine/reading/watch_hub.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "daemon/engine/run/wire.h"
#include "daemon/engine/seams/limits.h"
#include "daemon/engine/seams/validate.h"

namespace ckptd {

absl::StatusOr<int64_t> WatchHub::Add(const Caller& caller, const v1::WatchRequest& request, Event event) {
  absl::StatusOr<Duration> interval =
      CheckDuration(request.has_interval(), request.interval(), "interval", std::chrono::milliseconds(500),
                    std::chrono::milliseconds(100), std::chrono::seconds(60));
  if (!interval.ok()) return interval.status();
  const auto watches = std::count_if(watchers_.begin(), watchers_.end(), [&](const auto& entry) {
    return entry.second.caller.uid == caller.uid;
  });
  if (watches >= watches_per_uid_)
    return UidLimitExceeded(caller.uid, "watches", watches_per_uid_, "watches_per_uid");
  const int64_t id = next_id_++;
  watchers_.emplace(id, Watcher{caller, request.parent(), *interval, clock_->Now(), std::move(event)});
  return id;
}

bool WatchHub::Wants(const Watcher& watcher, const Run& run) const {
  return sees_(watcher.caller, run) && (watcher.run.empty() || watcher.run == run.name);
}

void WatchHub::Notify(const Run& run, v1::WatchResponse event) {
  SetTime(clock_->UnixMicros(), event.mutable_time());
  std::vector<int64_t> over;
  for (const auto& [id, watcher] : watchers_) {
    if (Wants(watcher, run) && !watcher.event(event)) over.push_back(id);
  }
  for (int64_t id : over) watchers_.erase(id);
}

bool WatchHub::SendProgress(const Watcher& watcher, const std::vector<Progress>& in_flight) {
  for (const Progress& progress : in_flight) {
    if (!Wants(watcher, *progress.run)) continue;
    v1::WatchResponse event = progress.event();
    SetTime(clock_->UnixMicros(), event.mutable_time());
    if (!watcher.event(event)) return false;
  }
  return true;
}

void WatchHub::OnTick(Instant now, const std::vector<Progress>& in_flight) {
  std::vector<int64_t> over;
  for (auto& [id, watcher] : watchers_) {
    if (now < watcher.next) continue;
    watcher.next = now + watcher.interval;
    if (!SendProgress(watcher, in_flight)) over.push_back(id);
  }
  for (int64_t id : over) watchers_.erase(id);
}

bool WatchHub::IsWatched(const Run& run) const {
  return std::any_of(watchers_.begin(), watchers_.end(),
                     [&run](const auto& entry) { return entry.second.run == run.name; });
}

}  // namespace ckptd
