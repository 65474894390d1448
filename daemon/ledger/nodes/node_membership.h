// Keeps this daemon registered as a node.
#ifndef CKPTD_DAEMON_LEDGER_NODES_NODE_MEMBERSHIP_H_
#define CKPTD_DAEMON_LEDGER_NODES_NODE_MEMBERSHIP_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/etcd/etcd.h"
#include "daemon/ledger/nodes/node_identity.h"
#include "daemon/ledger/nodes/node_registration.h"
#include "storage/base/callback_scope.h"
#include "storage/base/clock.h"

namespace ckptd {

// Registers at the first OnTick, retries until that succeeds, and registers anew, with another incarnation,
// when the registration is lost or given up. Used on one thread, the engine's.
class NodeMembership {
 public:
  struct Options {
    std::string prefix;                     // Of all keys of ckptd in this etcd, with the slash at its end.
    std::string name;                       // Of the node: without a slash.
    std::string host;                       // For messages.
    std::vector<std::string> incarnations;  // From the state directory.
    int64_t lease_seconds = 10;             // Also the longest wait between two tries.
    Duration shortest_wait = std::chrono::seconds(1);
    std::string version = {};  // The daemon's, for messages.
  };
  // Returns a random id of 128 bits or more.
  using NewIncarnation = std::function<std::string()>;
  // Runs with the identity whenever this daemon has registered, and with an error of NodeRegistration when a
  // registration is lost or a try fails for another reason than the previous try. It must not destroy the
  // NodeMembership.
  using Changed = std::function<void(const absl::StatusOr<NodeIdentity>&)>;

  // `etcd` and `clock` (BootClock(), except in tests) must outlive this object.
  NodeMembership(Etcd* etcd, Clock* clock, Options options, NodeRegistration::Remember remember,
                 NewIncarnation new_incarnation, Changed changed);

  // Null while this daemon may not act in its node's name: also from the lease's end on, before OnTick
  // notices.
  const NodeIdentity* identity() const;
  void OnTick();  // Call it at least once a second.
  // At the next OnTick, gives up the registration, reports `why` and registers anew. No-op without a
  // registration.
  void RegisterAnew(const absl::Status& why);
  // Gives up the name, and does not register again. Call it once, and not from `changed`.
  void Release(NodeRegistration::Done released);

 private:
  void Register();
  void Remember(const std::vector<std::string>& incarnations, NodeRegistration::Done remembered);
  void Registered(const absl::Status& status);
  void Lost(const absl::Status& why);

  Etcd* const etcd_;
  Clock* const clock_;
  const Options options_;
  const NodeRegistration::Remember remember_;
  const NewIncarnation new_incarnation_;
  const Changed changed_;

  std::vector<std::string> remembered_;  // Incarnations in the state directory.
  std::string incarnation_;              // Empty: the next registration needs a new one.
  std::unique_ptr<NodeRegistration> registration_;
  bool registered_ = false;
  absl::Status given_up_;  // Not OK: RegisterAnew was called with this reason.
  bool over_ = false;  // registration_ has failed or is lost. OnTick destroys it, since it may be our caller.
  bool released_ = false;
  std::string last_reason_;  // Of the last failure; empty after a success.
  Instant next_try_{};
  Duration wait_;
  CallbackScope callbacks_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_LEDGER_NODES_NODE_MEMBERSHIP_H_
