// The client's end of the hand-off socket (proto/ckptd/v1/handoff.proto). The connection is the session, and
// descriptors travel over it.
#ifndef CKPTD_CLIENT_CPP_SESSION_HANDOFF_H_
#define CKPTD_CLIENT_CPP_SESSION_HANDOFF_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/v1/handoff.pb.h"
#include "storage/base/clock.h"
#include "storage/base/mutex.h"
#include "storage/base/unique_fd.h"

namespace ckptd::client {

// A segment as the daemon sent it.
struct ReceivedSegment {
  int64_t id = 0;
  int64_t size = 0;
  bool huge = false;
  UniqueFd fd;
};

// Thread-safe: requests are sent one at a time. UNAVAILABLE without a reason means that the daemon is not
// there or has closed the connection.
class Handoff {
 public:
  // Connects. Does not wait for a daemon to appear. PERMISSION_DENIED, reason WRONG_UID: a process of another
  // user listens there (CheckServer).
  static absl::StatusOr<std::unique_ptr<Handoff>> Connect(const std::string& socket_path);
  explicit Handoff(UniqueFd socket);  // Takes a connected socket.

  absl::StatusOr<v1::HelloResponse> Hello(const v1::Hello& hello, Duration timeout);
  // Sends the descriptor of a root's directory and returns the root's handle. The daemon answers once it has
  // recovered the root.
  absl::StatusOr<std::string> AttachRoot(int directory, const std::string& path, Duration timeout);
  // Returns the segments in the order of `ids`, any number of them; asks in several requests if need be.
  absl::StatusOr<std::vector<ReceivedSegment>> FetchSegments(const std::vector<int64_t>& ids,
                                                             Duration timeout, bool read_only = false);
  absl::Status Goodbye(Duration timeout);

  // False once the daemon has closed its end. Does not block.
  bool alive() const;

 private:
  struct Answer {
    v1::HandoffResponse message;
    std::vector<UniqueFd> descriptors;
  };
  absl::StatusOr<Answer> Call(v1::HandoffRequest request, int descriptor, Duration timeout);
  absl::Status Send(const v1::HandoffRequest& request, int descriptor, Instant deadline);
  absl::StatusOr<Answer> Receive(Instant deadline);
  absl::Status WaitFor(short events, Instant deadline);

  Mutex mutex_;  // Held for one request and its answer.
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  const UniqueFd socket_;
};

}  // namespace ckptd::client
#endif  // CKPTD_CLIENT_CPP_SESSION_HANDOFF_H_
