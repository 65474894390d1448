// What the runs of one user have in etcd, and how much that may be: a full etcd stops the runs of all users.
#ifndef CKPTD_DAEMON_LEDGER_STATE_USER_USE_H_
#define CKPTD_DAEMON_LEDGER_STATE_USER_USE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "etcd/messages.pb.h"

namespace ckptd {

struct UseBound {
  int64_t keys = 0, bytes = 0;  // Of all runs of a user together, of keys and values. 0: no bound.
};

// What a new run counts for until its coordinator has counted.
inline constexpr int64_t kLeastKeysOfRun = 16, kLeastBytesOfRun = 4096;

// `users/<uid>/<run>` has what a run has in etcd: a RunUse. `cluster_prefix`: of all keys of ckptd, with the
// slash at its end.
std::string UsesOf(const std::string& cluster_prefix, uint32_t uid);

// OK while the runs beneath UsesOf, which are `uses`, have less than `bound` together. Else
// RESOURCE_EXHAUSTED, reason LIMIT_EXCEEDED, which names the uid, the bound, the largest run, and what to do.
absl::Status CheckUse(uint32_t uid, const std::vector<etcdserverpb::KeyValue>& uses, const UseBound& bound);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_LEDGER_STATE_USER_USE_H_
