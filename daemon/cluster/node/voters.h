// Follows in etcd the nodes that vote for the saves of the active attempt.
#ifndef CKPTD_DAEMON_CLUSTER_NODE_VOTERS_H_
#define CKPTD_DAEMON_CLUSTER_NODE_VOTERS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "daemon/etcd/etcd.h"
#include "daemon/etcd/etcd_mirror.h"
#include "daemon/ledger/keys/keys.h"
#include "daemon/ledger/save/change_save.h"

namespace ckptd {

// Follows the attempt's ranks by node, and the registrations of all nodes, but no votes: every node would
// receive those of every other node. Used on one thread.
class Voters {
 public:
  // `nodes`: the prefix of the nodes' keys. `run`: for messages. `ended`: as EtcdMirror::Ended, for each of
  // the two mirrors; it must not destroy the object. `etcd` must outlive it.
  Voters(Etcd* etcd, LedgerKeys keys, const std::string& nodes, std::string run,
         std::function<void(const absl::Status&)> ended);

  void Start() { nodes_.Start(); }
  // Follows this attempt instead of the previous one.
  void Follow(int64_t attempt);
  // nullopt: the attempt is not followed, its nodes are not known yet, or they are more than kMostVoters.
  std::optional<SaveGuess::Voters> Of(int64_t attempt) const;

 private:
  Etcd* const etcd_;
  const LedgerKeys keys_;
  const std::string run_;
  const std::function<void(const absl::Status&)> ended_;
  EtcdMirror nodes_;
  bool nodes_known_ = false, ranks_known_ = false;
  int64_t attempt_ = 0;
  std::unique_ptr<EtcdMirror> ranks_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_CLUSTER_NODE_VOTERS_H_
