// What a watcher still has to be sent. A slow watcher loses progress, never a change of level; one that is
// too slow for those, too, is given up.
#ifndef CKPTD_DAEMON_GRPC_WATCH_QUEUE_H_
#define CKPTD_DAEMON_GRPC_WATCH_QUEUE_H_

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
  // Progress is dropped while `progress_limit` events wait; `limit` is the end.
  explicit WatchQueue(size_t progress_limit = 64, size_t limit = 1024)
      : progress_limit_(progress_limit), limit_(limit) {}

  // An error, WATCHER_TOO_SLOW: the event is a change of level and does not fit.
  absl::Status Push(const v1::WatchResponse& event);
  std::optional<v1::WatchResponse> Pop();

 private:
  using Key = std::pair<std::string, int64_t>;  // Name and sequence: a tag may be saved again.

  size_t progress_limit_;
  size_t limit_;
  std::deque<v1::WatchResponse> events_;
  std::map<Key, v1::Level> levels_;  // Last told; of saves that have not ended.
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_GRPC_WATCH_QUEUE_H_
