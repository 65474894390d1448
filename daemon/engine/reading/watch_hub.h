// Watch streams: send changes to the clients that watch a run.
#ifndef CKPTD_DAEMON_ENGINE_READING_WATCH_HUB_H_
#define CKPTD_DAEMON_ENGINE_READING_WATCH_HUB_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ckptd/v1/messages.pb.h"
#include "daemon/engine/run/run.h"
#include "daemon/engine/seams/engine_types.h"
#include "storage/base/clock.h"

namespace ckptd {

// Owns the open watches and sends events to those that may see the run. An event function that returns false
// ends its watch.
class WatchHub {
 public:
  using Event = std::function<bool(const v1::WatchResponse&)>;
  // Whether this caller may see this run.
  using Sees = std::function<bool(const Caller&, const Run&)>;

  WatchHub(Clock* clock, int watches_per_uid, Sees sees)
      : clock_(clock), watches_per_uid_(watches_per_uid), sees_(std::move(sees)) {}

  void SetMostPerUser(int watches) { watches_per_uid_ = watches; }

  // Watches the run that request.parent names, or all that the caller may see. Returns the watch's id;
  // LIMIT_EXCEEDED when this user has too many. The first progress events come with the next OnTick.
  absl::StatusOr<int64_t> Add(const Caller& caller, const v1::WatchRequest& request, Event event);
  void Remove(int64_t id) { watchers_.erase(id); }

  // Sends the event, with the present time, to every watch of this run.
  void Notify(const Run& run, v1::WatchResponse event);

  // Progress of a save in flight, as Notify sends it.
  struct Progress {
    const Run* run = nullptr;
    std::function<v1::WatchResponse()> event;
  };
  // Sends progress to each watch whose interval has passed.
  void OnTick(Instant now, const std::vector<Progress>& in_flight);

  // Whether a client watches this run by its name.
  bool IsWatched(const Run& run) const;

 private:
  struct Watcher {
    Caller caller;
    std::string run;  // Empty: all that the caller may see.
    Duration interval;
    Instant next;
    Event event;
  };

  bool Wants(const Watcher& watcher, const Run& run) const;
  // False: the watch is over.
  bool SendProgress(const Watcher& watcher, const std::vector<Progress>& in_flight);

  Clock* const clock_;
  int watches_per_uid_;
  const Sees sees_;
  std::map<int64_t, Watcher> watchers_;
  int64_t next_id_ = 1;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_READING_WATCH_HUB_H_
