// Identifies the daemon that writes to etcd: its node's name and its registration.
#ifndef CKPTD_DAEMON_LEDGER_NODES_NODE_IDENTITY_H_
#define CKPTD_DAEMON_LEDGER_NODES_NODE_IDENTITY_H_

#include <cstdint>
#include <memory>
#include <string>

#include "daemon/etcd/lease_end.h"
#include "daemon/ledger/keys/compare_and_swap.h"

namespace ckptd {

struct NodeIdentity {
  std::string name;
  int64_t lease = 0;  // Keys under it are removed when this daemon has ended.
  // The node's key, and its value, which no other registration ever has: it contains the incarnation.
  std::string key, value;
  // When the lease ends, for other threads. Null: not known.
  std::shared_ptr<const LeaseEnd> lease_end = nullptr;

  // The condition of all writes of this daemon: etcd still has its registration. Without it, a daemon that was
  // paused for longer than its lease could overwrite its successor's decisions.
  CompareAndSwap::Held Held() const;
  // The prefix of the keys of all nodes.
  std::string Siblings() const { return key.substr(0, key.size() - name.size()); }
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_LEDGER_NODES_NODE_IDENTITY_H_
