// Counts the descriptors in packets that peers have not read yet. The kernel counts them for the daemon's
// user and limits them to RLIMIT_NOFILE, so one user that does not read its answers must not use up the limit
// for all.
#ifndef CKPTD_DAEMON_HANDOFF_UNREAD_DESCRIPTORS_H_
#define CKPTD_DAEMON_HANDOFF_UNREAD_DESCRIPTORS_H_

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "daemon/handoff/handoff_connection.h"

namespace ckptd {

// Used on the hand-off server's thread only.
class UnreadDescriptors {
 public:
  using Connections = std::map<uint64_t, HandoffConnection>;

  // `connections`: the open ones, must outlive this. `max`: descriptors of all peers together; 0: half of
  // RLIMIT_NOFILE. `max_per_uid`: of one user; 0: a quarter of `max`. Both are at least 64 by default, which
  // is what one answer may hold.
  UnreadDescriptors(Connections* connections, int max, int max_per_uid);

  // OK if an answer with `count` descriptors may be sent on `connection` now: it has read all earlier ones,
  // and the limits leave room. Else RESOURCE_EXHAUSTED, reason LIMIT_EXCEEDED.
  absl::Status CheckRoom(HandoffConnection& connection, int count);
  bool ExceedsUidLimit(uid_t uid, int count);

  // Counts `count` more descriptors as sent on `connection` and not read; a negative `count` takes them off.
  void Add(HandoffConnection& connection, int count);
  // Counts the descriptors of a closed connection until its peer has read them.
  void AddRemains(UnreadRemains remains) { remains_.push_back(std::move(remains)); }
  // Asks the kernel which peers have read their packets, and stops counting these.
  void Refresh();

  int num_remains() const { return static_cast<int>(remains_.size()); }
  int num_remains(uid_t uid) const;

 private:
  Connections* const connections_;
  const int max_;
  const int max_per_uid_;
  int total_ = 0;  // As of the last Refresh: never fewer than there are.
  std::map<uid_t, int> of_uid_;
  std::vector<UnreadRemains> remains_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_HANDOFF_UNREAD_DESCRIPTORS_H_
