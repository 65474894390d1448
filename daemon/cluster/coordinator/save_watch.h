// Follows in etcd the saves of a run that have not ended: the votes and reports of their nodes, and the ranks
// of their attempts.
#ifndef CKPTD_DAEMON_CLUSTER_COORDINATOR_SAVE_WATCH_H_
#define CKPTD_DAEMON_CLUSTER_COORDINATOR_SAVE_WATCH_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ckptd/ledger/v1/ledger.pb.h"
#include "daemon/etcd/etcd.h"
#include "daemon/etcd/etcd_mirror.h"
#include "daemon/ledger/keys/keys.h"
#include "daemon/ledger/nodes/node_identity.h"
#include "daemon/ledger/save/change_save.h"
#include "daemon/ledger/state/save_view.h"

namespace ckptd {

// One watch follows the votes of all saves, because etcd takes up to 100 ms to serve a new watch that begins
// in the past.
class SaveWatch {
 public:
  struct Hooks {
    std::function<void(int64_t sequence)> changed;  // A vote or report on this save.
    std::function<void()> all_changed;
    // As EtcdMirror::Ended, for each of the mirrors. It must not destroy the object.
    std::function<void(const absl::Status&)> ended;
  };
  struct Vote {
    ledger::v1::NodeVote vote;
    int64_t revision = 0;  // Of its last change.
  };

  // `etcd` must outlive it. `run`: for messages.
  SaveWatch(Etcd* etcd, const std::string& prefix, const NodeIdentity& node, std::string run, Hooks hooks);

  // Follows the nodes and the active attempt.
  void Start();
  // Follows the votes of all saves from this sequence on. A later call drops the votes of earlier saves.
  void FollowFrom(int64_t sequence);
  // Follows the ranks of these attempts, and of the active one.
  void FollowAttempts(const std::set<int64_t>& attempts);

  bool Knows(int64_t attempt) const;  // Whether it has all that View needs.
  // 0: none, or it is not known.
  int64_t active() const { return active_attempt_; }
  const EtcdMirror::Keys& nodes() const { return nodes_.keys(); }
  // Call it if Knows(save.attempt()).
  SaveView View(int64_t sequence, const ledger::v1::SaveState& save) const;
  // Likewise. False: there is nothing to decide, because some nodes have not reported the next step, no node
  // has rejected the save, and all nodes that have voted still have their registrations. Cheap, unlike View,
  // which reads all ranks: hundreds of nodes vote one after the other.
  bool VotesMayDecide(int64_t sequence, const ledger::v1::SaveState& save) const;
  size_t NodesOf(int64_t attempt) const;  // How many nodes have joined it.
  // The votes of nodes that still have the registration with which they voted.
  std::vector<Vote> VotesThatCount(int64_t sequence) const;
  // What a transaction would read by SaveViewRanges for a save of this attempt.
  CompareAndSwap::Found Found(int64_t sequence, int64_t attempt) const;

 private:
  struct Attempt {
    bool known = false;
    std::unique_ptr<EtcdMirror> mirror;
  };

  void OnVotes(const std::vector<std::string>& keys);
  void OnActive();
  void FollowAttempt(int64_t attempt);
  std::vector<etcdserverpb::KeyValue> VotesOf(int64_t sequence) const;
  // Whether the node that has voted with this key still has the registration with which it voted.
  bool IsOfLiving(const etcdserverpb::KeyValue& key, const ledger::v1::NodeVote& vote) const;

  Etcd* const etcd_;
  const LedgerKeys keys_;
  const std::string nodes_prefix_, run_;
  const Hooks hooks_;
  EtcdMirror nodes_, active_, votes_;
  bool nodes_known_ = false, active_known_ = false, votes_known_ = false, votes_followed_ = false;
  int64_t active_attempt_ = 0;
  std::map<int64_t, Attempt> attempts_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_CLUSTER_COORDINATOR_SAVE_WATCH_H_
