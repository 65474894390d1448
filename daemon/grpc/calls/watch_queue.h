// The events that a watcher still has to be sent. A slow watcher loses progress events, never a change of
// level. A watcher that is too slow even for these is ended.
#ifndef CKPTD_DAEMON_GRPC_CALLS_WATCH_QUEUE_H_
#define CKPTD_DAEMON_GRPC_CALLS_WATCH_QUEUE_H_

#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "ckptd/v1/messages.pb.h"

namespace ckptd {

// Not thread-safe.
class WatchQueue {
 public:
  // Progress events are dropped while `progress_limit` events wait. `limit` is the most events that may wait.
  explicit WatchQueue(size_t progress_limit = 64, size_t limit = 1024)
      : progress_limit_(progress_limit), limit_(limit) {}

  // RESOURCE_EXHAUSTED, reason WATCHER_TOO_SLOW, when the event is a change of level and `limit` events wait.
  absl::Status Push(const v1::WatchResponse& event);
  std::optional<v1::WatchResponse> Pop();

 private:
  using Key = std::pair<std::string, int64_t>;  // Name and sequence: a tag may be saved again.

  size_t progress_limit_;
  size_t limit_;
  std::deque<v1::WatchResponse> events_;
  std::map<Key, v1::Level> levels_;  // The last level queued for each save that has not ended.
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_GRPC_CALLS_WATCH_QUEUE_H_
