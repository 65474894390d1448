// How much the runs of one user have in etcd, and the bound on that: a full etcd stops the runs of all users.
#ifndef CKPTD_DAEMON_LEDGER_STATE_USER_USE_H_
#define CKPTD_DAEMON_LEDGER_STATE_USER_USE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "etcd/messages.pb.h"

namespace ckptd {

struct UseBound {
  int64_t keys = 0, bytes = 0;  // For all runs of a user together; bytes of keys and values. 0: no bound.
};

// Each run counts for at least this much, also a new one whose coordinator has not counted yet.
inline constexpr int64_t kLeastKeysOfRun = 16, kLeastBytesOfRun = 4096;

// The prefix of a user's keys `users/<uid>/<run>`, each of which holds a RunUse. `cluster_prefix`: of all
// keys of ckptd, with the slash at its end.
std::string UsesOf(const std::string& cluster_prefix, uint32_t uid);

// `uses`: all keys under UsesOf. OK while these runs have less than `bound` together. Else
// RESOURCE_EXHAUSTED, reason LIMIT_EXCEEDED; its message names the uid, the bound, the largest run, and what
// to do.
absl::Status CheckUse(uint32_t uid, const std::vector<etcdserverpb::KeyValue>& uses, const UseBound& bound);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_LEDGER_STATE_USER_USE_H_
