// Registers this daemon's name among the daemons that share an etcd, and notices when it has lost the name.
#ifndef CKPTD_DAEMON_LEDGER_NODES_NODE_REGISTRATION_H_
#define CKPTD_DAEMON_LEDGER_NODES_NODE_REGISTRATION_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "daemon/etcd/etcd.h"
#include "daemon/etcd/etcd_lease.h"
#include "daemon/ledger/keys/compare_and_swap.h"
#include "daemon/ledger/nodes/node_identity.h"
#include "storage/base/callback_scope.h"
#include "storage/base/clock.h"

namespace ckptd {

// One registration: from Register until its lease is lost or released. To register again, make another object
// with another incarnation: requests that were sent under this registration must not take effect later.
//
// A daemon that starts again takes the name over at once if it knows its predecessor's incarnation from the
// state directory that they share; any other daemon is refused until the predecessor's lease has ended.
class NodeRegistration {
 public:
  using Done = absl::AnyInvocable<void(absl::Status)>;
  // Stores durably, in the state directory, the incarnations by which etcd may know this node. The next
  // daemon passes them as `predecessors`.
  using Remember = std::function<void(const std::vector<std::string>& incarnations, Done remembered)>;

  struct Options {
    std::string prefix;                     // Of all keys of ckptd in this etcd, with the slash at its end.
    std::string name;                       // Of the node: without a slash.
    std::string host;                       // For messages.
    std::string incarnation;                // Random, of 128 bits or more; for this registration alone.
    std::vector<std::string> predecessors;  // As Remember has stored them.
    int64_t lease_seconds = 10;
    std::string version = {};  // The daemon's, for messages.
  };

  // `clock`: BootClock(), except in tests. `lost` runs once, when a registration that was answered with OK is
  // lost; never after Release. `etcd` and `clock` must outlive this object.
  NodeRegistration(Etcd* etcd, Clock* clock, Options options, Remember remember,
                   std::function<void(const absl::Status& why)> lost);
  ~NodeRegistration();

  // Call it once. OK: this daemon has the name, and etcd applies no later request of its predecessor.
  // NODE_NAME_TAKEN; errors of `remember`, NODE_REPLACED, and those of etcd_errors.h. After any but the first
  // this daemon may have the name or not: register again, which takes the name over from this registration.
  void Register(Done answer);
  // Valid after OK. Everything that this daemon writes compares it.
  const NodeIdentity& identity() const { return identity_; }
  // False once the lease may have ended, also before OnTick notices.
  bool held() const { return lease_.held(); }
  void OnTick();  // Call it at least once a second, from Register on.
  // Gives up the name now.
  void Release(Done released) { lease_.Release(std::move(released)); }

 private:
  // The registration that had the name: its lease, and NODE_NAME_TAKEN if it may not be replaced.
  struct Predecessor {
    bool found = false;
    int64_t lease = 0;
    absl::Status refused;
  };

  void Acquire(Done answer);
  void TakeName(Done answer);
  std::vector<etcdserverpb::RequestOp> Decide(const CompareAndSwap::Found& found, Predecessor* predecessor);
  void EndPredecessor(int64_t lease, Done answer);
  void RememberOnlyThis(Done answer);
  void Lost(const absl::Status& why);
  absl::Status Taken(const std::string& host) const;

  Etcd* const etcd_;
  const Options options_;
  const Remember remember_;
  const std::function<void(const absl::Status&)> lost_;
  EtcdLease lease_;
  NodeIdentity identity_;
  bool registered_ = false;
  CallbackScope callbacks_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_LEDGER_NODES_NODE_REGISTRATION_H_
