// The end of a resume on all nodes: every rank has read its part, or one could not.
#ifndef CKPTD_DAEMON_CLUSTER_NODE_NODES_RESUME_H_
#define CKPTD_DAEMON_CLUSTER_NODE_NODES_RESUME_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "daemon/cluster/node/ledger_calls.h"
#include "daemon/etcd/etcd.h"
#include "daemon/etcd/etcd_mirror.h"
#include "daemon/ledger/keys/keys.h"
#include "daemon/ledger/nodes/node_identity.h"
#include "storage/base/callback_scope.h"
#include "storage/base/clock.h"
#include "storage/ledger/ledger.h"

namespace ckptd {

// Each node writes one key for an attempt, its report, and follows the reports of the other nodes. Each node
// that sees all reports asks the ledger to agree; the ledger decides once. Used on one thread.
class NodesResume {
 public:
  using Done = absl::AnyInvocable<void(absl::Status)>;

  struct Options {
    std::string prefix;  // Of the run's keys, with the slash at its end.
    std::string run;     // For messages.
    LedgerCalls::WhyUnregistered why_unregistered = nullptr;
  };
  // `etcd`, `clock` and `ledger` must outlive it.
  NodesResume(Etcd* etcd, Clock* clock, Ledger* ledger, Options options);

  // The present registration; null: none.
  void SetNode(const NodeIdentity* node);
  void OnTick();

  // `mine` OK: all ranks of this node have read their parts of the checkpoint from which the attempt resumes.
  // Answers with OK when the ranks of all nodes have, and the ledger has recorded that; with the error of a
  // node with a rank that could not (ABORTED, reason RESUME_FAILED, or CHECKPOINT_DAMAGED, naming the node);
  // or with DEADLINE_EXCEEDED, reason RESUME_INCOMPLETE, which names the nodes that have not reported. A
  // later call for the same attempt replaces an earlier one, which is answered with the `mine` of the later
  // one, or with ABORTED if that is OK.
  void Finish(int64_t attempt, int64_t sequence, const absl::Status& mine, Instant deadline, Done done);

 private:
  struct Round {
    int64_t attempt = 0, sequence = 0;
    // Counts all rounds: an answer to an earlier round of the attempt does not end this one.
    int64_t number = 0;
    Instant deadline;
    Done done;
    std::string said;  // This node's report.
    bool agreeing = false;
    std::unique_ptr<EtcdMirror> reports, ranks;
    bool reports_known = false, ranks_known = false;
    absl::Status mirror_error;  // Not OK: the mirrors have ended, and are made anew at the next tick.
  };
  // The reports of the nodes so far.
  struct View {
    // Nodes that have ranks and have not reported on this sequence; this node also while etcd has its report
    // of an earlier round.
    std::vector<std::string> silent;
    int missing_ranks = 0;  // That have not joined on any node.
    absl::Status failure;
  };

  void Report(Round& round, const absl::Status& mine);
  void Follow(Round& round);
  std::unique_ptr<EtcdMirror> MirrorOf(int64_t attempt, const std::string& prefix, bool Round::*known);
  View ViewOf(const Round& round) const;
  void Look(int64_t attempt);
  bool IsUnderWay(int64_t attempt, int64_t number) const;
  void End(int64_t attempt, const absl::Status& result);
  absl::Status NotInTime(const Round& round) const;

  Etcd* const etcd_;
  Clock* const clock_;
  Ledger* const ledger_;
  const Options options_;
  const LedgerKeys keys_;
  LedgerCalls calls_;
  std::unique_ptr<NodeIdentity> node_;
  std::string name_;                 // This node's; empty until it has been registered.
  std::map<int64_t, Round> rounds_;  // By attempt.
  int64_t last_round_ = 0;
  // The last report of this node's ranks, by attempt.
  std::map<int64_t, std::shared_ptr<std::string>> last_reports_;
  CallbackScope callbacks_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_CLUSTER_NODE_NODES_RESUME_H_
