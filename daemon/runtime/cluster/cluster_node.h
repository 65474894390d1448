// This daemon as one of several that share an etcd: it registers as a node, and follows which other nodes
// there are.
#ifndef CKPTD_DAEMON_RUNTIME_CLUSTER_CLUSTER_NODE_H_
#define CKPTD_DAEMON_RUNTIME_CLUSTER_CLUSTER_NODE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/v1/messages.pb.h"
#include "daemon/etcd/etcd.h"
#include "daemon/etcd/etcd_mirror.h"
#include "daemon/etcd/grpc/etcd_options.h"
#include "daemon/etcd/grpc/grpc_etcd.h"
#include "daemon/ledger/nodes/node_identity.h"
#include "daemon/ledger/nodes/node_membership.h"
#include "daemon/ledger/nodes/node_summaries.h"
#include "storage/base/clock.h"

namespace ckptd {

// Used on one thread, the engine's, from its first OnTick on; destroyed after that thread has ended, or on
// it. An etcd that does not answer holds up nobody: what needs it is asked again, and the log says so once.
class ClusterNode {
 public:
  struct Options {
    EtcdOptions etcd;
    NodeMembership::Options membership;
  };
  struct Hooks {
    GrpcEtcd::Post post;  // To the thread that uses the object.
    NodeRegistration::Remember remember;
    NodeMembership::NewIncarnation new_incarnation;
    GrpcEtcd::CallEnded call_ended;
  };

  // Errors of GrpcEtcd::Make. Asks etcd for nothing yet.
  static absl::StatusOr<std::unique_ptr<ClusterNode>> Make(Options options, Hooks hooks);

  // Several times a second. `status`: of this daemon, for what other nodes show of it.
  void OnTick(const NodeSummaries::Status& status);
  // For a follower that cannot go on under this registration, and says why: the next OnTick ends it, and
  // registers the node with another one.
  void RegisterAnew(const absl::Status& why) { membership_.RegisterAnew(why); }
  // Gives the name up, and does not register again. Followers are told null first: nothing more is written in
  // this node's name. Call it once.
  void Release(NodeRegistration::Done released);
  v1::ClusterStatus Status() const;
  // Adds what each node has last reported of itself to a status that has this node's ClusterStatus, or why it
  // could not be read.
  void AddSummaries(v1::Status status, absl::AnyInvocable<void(absl::StatusOr<v1::Status>)> done);
  // As GrpcEtcd::Renew.
  void Renew(EtcdCredentials credentials, GrpcEtcd::Renewed done) {
    etcd_->Renew(std::move(credentials), std::move(done));
  }
  // For those who wait for the registration: names this node, and what to do. LEDGER_UNAVAILABLE while it may
  // come by itself; else the error that keeps it away, such as LEDGER_RESTORED. OK if it is registered.
  absl::Status WhyUnregistered() const;

  // For runs that span nodes. Null while nobody may act in this node's name.
  const NodeIdentity* identity() const { return membership_.identity(); }
  Etcd* etcd() { return etcd_.get(); }

  // The registration; null: there is none. The pointer is valid within the call, which must not destroy the
  // ClusterNode.
  using Follower = std::function<void(const NodeIdentity*)>;
  // Calls `follower` now, and whenever a registration is gained or lost, until the returned object is
  // destroyed. That a lease has ended is known once the next OnTick has found out.
  [[nodiscard]] std::shared_ptr<const Follower> Follow(Follower follower);

 private:
  ClusterNode(Options options, Hooks hooks, std::unique_ptr<GrpcEtcd> etcd);
  void MembershipChanged(const absl::StatusOr<NodeIdentity>& changed);
  void TellFollowers();
  void LogFailure(const absl::Status& why, bool was_registered) const;
  void FollowNodes();
  void LogLostNodes();
  void LogFullEtcd();
  void AddNodes(v1::ClusterStatus* status) const;
  void AddMembers(v1::ClusterStatus* status) const;

  const Options options_;
  const std::unique_ptr<GrpcEtcd> etcd_;
  NodeMembership membership_;
  NodeSummaries summaries_;
  std::optional<NodeIdentity> registration_;  // As membership_ has said last.
  std::vector<std::weak_ptr<const Follower>> followers_;
  int64_t registered_us_ = 0;
  int64_t lost_leases_ = 0;
  absl::Status error_;  // Of the last try, or why the registration was lost.

  std::unique_ptr<EtcdMirror> nodes_;
  // Their hosts by name, without this one: for the log, also over the time in which nodes_ is made anew.
  std::map<std::string, std::string> known_nodes_;
  std::set<std::string> lost_nodes_;
  bool full_ = false;         // The log has said so of etcd.
  absl::Status nodes_error_;  // Not OK: nodes_ has ended, and is made anew at next_nodes_.
  Instant next_nodes_{};
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_RUNTIME_CLUSTER_CLUSTER_NODE_H_
