// This daemon's name among the daemons that share an etcd, and that it is still the one that has it.
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

// One registration: from Register until its lease is lost or released. It is made anew, with another
// incarnation, to register again: what was asked for in its name while it was cut off must not count later.
//
// A daemon that starts again takes the name over at once if it knows the incarnation of the daemon before it,
// from the state directory that they share; any other is refused while the lease of that daemon lives.
class NodeRegistration {
 public:
  using Done = absl::AnyInvocable<void(absl::Status)>;
  // Makes durable, in the state directory, the incarnations that etcd may know this node by. A daemon that
  // starts next gives them as `predecessors`.
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

  // `clock`: BootClock(), but for tests. `lost` runs once if a registration that was answered with OK is
  // over; never after Release. `etcd` and `clock` must outlive this object.
  NodeRegistration(Etcd* etcd, Clock* clock, Options options, Remember remember,
                   std::function<void(const absl::Status& why)> lost);
  ~NodeRegistration();

  // Call it once. OK: the name is this daemon's, and nothing that its predecessor asks of etcd from now on is
  // applied. NODE_NAME_TAKEN; errors of `remember`, and those of etcd_errors.h, after which it may have the
  // name or not: register again, which takes the name over from this one.
  void Register(Done answer);
  // After OK. What this daemon writes compares it.
  const NodeIdentity& identity() const { return identity_; }
  // False when the lease may have ended, also before that was noticed.
  bool held() const { return lease_.held(); }
  void OnTick();  // At least once a second, from Register on.
  // Gives the name up now.
  void Release(Done released) { lease_.Release(std::move(released)); }

 private:
  // What was found in the way, and by which lease it lives.
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
