// State of a hand-off connection, and the queue through which other threads answer.
#ifndef CKPTD_DAEMON_HANDOFF_HANDOFF_CONNECTION_H_
#define CKPTD_DAEMON_HANDOFF_HANDOFF_CONNECTION_H_

#include <sys/eventfd.h>
#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "ckptd/v1/handoff.pb.h"
#include "daemon/engine/engine.h"
#include "daemon/memory/segment_pool.h"
#include "daemon/sessions/peer_table.h"
#include "storage/base/clock.h"
#include "storage/base/errors.h"
#include "storage/base/mutex.h"
#include "storage/base/unique_fd.h"

namespace ckptd {

// Queue of answers from other threads. Thread-safe. Shared: it outlives the server while a reply is pending.
class HandoffReplies {
 public:
  struct Reply {
    uint64_t connection;
    uint64_t ticket;
    absl::StatusOr<std::string> root;
  };

  int wake_fd() const { return wake_.get(); }

  void Push(Reply reply) {
    MutexLock lock(mutex_);
    replies_.push_back(std::move(reply));
    Wake();
  }
  void Wake() { eventfd_write(wake_.get(), 1); }
  std::vector<Reply> Take() {
    eventfd_t ignored = 0;
    eventfd_read(wake_.get(), &ignored);
    MutexLock lock(mutex_);
    return std::exchange(replies_, {});
  }

 private:
  const UniqueFd wake_{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  Mutex mutex_;
  std::vector<Reply> replies_ ABSL_GUARDED_BY(mutex_);
};

struct HandoffAnswer {
  uint64_t ticket = 0;
  bool ready = false;
  v1::HandoffResponse response;
  // The segments of a FetchSegments. Their descriptors are made when the answer is sent, so a waiting answer
  // holds none.
  std::vector<SegmentId> segments;
  SegmentAccess access = SegmentAccess::kWrite;

  void Fail(const absl::Status& status) {
    ready = true;
    segments.clear();
    response.clear_kind();
    v1::HandoffError& error = *response.mutable_error();
    error.set_code(static_cast<int>(status.code()));
    error.set_reason(ReasonOf(status));
    error.set_message(std::string(status.message()));
  }
};

struct HandoffConnection {
  uint64_t id = 0;
  UniqueFd socket;
  UniqueFd pidfd;
  Peer peer;
  Instant hello_deadline;
  bool greeted = false;
  bool open = false;     // The session is open.
  bool leaving = false;  // Said Goodbye: closed once its answers are sent.
  bool keeper = false;
  SessionInfo session;
  std::deque<HandoffAnswer> answers;  // Not sent yet, in the order of the requests.
  int unread = 0;                     // Descriptors in packets that the peer had not read at the last check.
  Instant unread_since;
  std::optional<Instant> held_since;  // Since when the first answer waits for descriptors to be read.
};

// A closed connection whose peer has not read packets with descriptors. The kernel counts these until the
// peer reads them or closes its end, and so does the server.
struct UnreadRemains {
  UniqueFd socket;
  uid_t uid = 0;
  int unread = 0;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_HANDOFF_HANDOFF_CONNECTION_H_
