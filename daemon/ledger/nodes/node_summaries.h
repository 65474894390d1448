// A summary of each node's state in etcd, a few hundred bytes, so that any node can answer for all.
#ifndef CKPTD_DAEMON_LEDGER_NODES_NODE_SUMMARIES_H_
#define CKPTD_DAEMON_LEDGER_NODES_NODE_SUMMARIES_H_

#include <chrono>
#include <functional>
#include <map>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "ckptd/v1/messages.pb.h"
#include "daemon/etcd/etcd.h"
#include "daemon/ledger/nodes/node_identity.h"
#include "storage/base/callback_scope.h"
#include "storage/base/clock.h"

namespace ckptd {

// The summary of a daemon, without its time: counts and states, and no names of roots or runs.
v1::NodeSummary SummaryOf(const v1::Status& status);

// Writes the summary of this node under its lease, and reads those of all nodes when an operator asks. No node
// watches them, so they cost etcd one small write each 10 s for each node on which something changes.
// Used on the thread of its etcd.
class NodeSummaries {
 public:
  static constexpr Duration kShortestPause = std::chrono::seconds(10);
  using ByNode = std::map<std::string, v1::NodeSummary>;
  using Status = std::function<v1::Status()>;

  // `prefix`: of all keys of ckptd in this etcd, with the slash at its end. `etcd` and `clock` must outlive it.
  NodeSummaries(Etcd* etcd, Clock* clock, std::string prefix);

  // Writes the summary if it is due and has changed. Best effort: a failed write is tried again later. `node`:
  // null without a registration.
  void OnTick(const NodeIdentity* node, const Status& status);
  // The summaries of the nodes that have written one and are registered. LEDGER_UNAVAILABLE if etcd does not
  // answer.
  void Read(absl::AnyInvocable<void(absl::StatusOr<ByNode>)> done);

 private:
  Etcd* const etcd_;
  Clock* const clock_;
  const std::string prefix_;  // Of the summaries.
  std::string registration_;  // For which `written_` was written.
  std::string written_;       // The last summary, without its time. Empty: none was.
  bool writing_ = false;
  Instant next_{};
  CallbackScope callbacks_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_LEDGER_NODES_NODE_SUMMARIES_H_
