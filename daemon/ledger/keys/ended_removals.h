// The decisions to remove a checkpoint that one node knows to be over.
#ifndef CKPTD_DAEMON_LEDGER_KEYS_ENDED_REMOVALS_H_
#define CKPTD_DAEMON_LEDGER_KEYS_ENDED_REMOVALS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "daemon/etcd/etcd.h"

namespace ckptd {

// By sequence: the value of the key LedgerKeys::Evicting with a decision that is over. If the root holds a
// checkpoint of that sequence now, it was put back since, or was not removed after all.
using EndedRemovals = std::map<int64_t, std::string>;

// Whether `found`, the key LedgerKeys::Evicting of this sequence, holds a decision that is not in `ended`.
// `ended`: null for none.
inline bool IsBeingRemoved(const EndedRemovals* ended, int64_t sequence,
                           const std::vector<etcdserverpb::KeyValue>& found) {
  if (found.empty()) return false;
  if (ended == nullptr) return true;
  const auto over = ended->find(sequence);
  return over == ended->end() || over->second != found[0].value();
}

}  // namespace ckptd
#endif  // CKPTD_DAEMON_LEDGER_KEYS_ENDED_REMOVALS_H_
