// Which daemon writes: a node's name, and the registration that it has it by.
#ifndef CKPTD_DAEMON_LEDGER_NODES_NODE_IDENTITY_H_
#define CKPTD_DAEMON_LEDGER_NODES_NODE_IDENTITY_H_

#include <cstdint>
#include <string>

#include "daemon/ledger/keys/compare_and_swap.h"

namespace ckptd {

struct NodeIdentity {
  std::string name;
  int64_t lease = 0;  // Keys under it are removed when this daemon has ended.
  // The node's key. No other registration ever has this value, for it holds the incarnation.
  std::string key, value;

  // For whatever this daemon writes: it counts only while the registration stands. Without it, a daemon that
  // was paused for longer than its lease would still write what its successor knows nothing of.
  CompareAndSwap::Held Held() const;
  // The prefix of the keys of all nodes.
  std::string Siblings() const { return key.substr(0, key.size() - name.size()); }
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_LEDGER_NODES_NODE_IDENTITY_H_
