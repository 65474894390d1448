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

// Registers from the first OnTick on, tries again while that fails, and registers anew, with another
// incarnation, when its registration is lost or given up. Used on one thread, the engine's.
class NodeMembership {
 public:
  struct Options {
    std::string prefix;                     // Of all keys of ckptd in this etcd, with the slash at its end.
    std::string name;                       // Of the node: without a slash.
    std::string host;                       // For messages.
    std::vector<std::string> incarnations;  // As the state directory has them.
    int64_t lease_seconds = 10;             // Also the longest wait between two tries.
    Duration shortest_wait = std::chrono::seconds(1);
    std::string version = {};  // The daemon's, for messages.
  };
  // Makes up 128 random bits or more.
  using NewIncarnation = std::function<std::string()>;
  // The identity, whenever this daemon has registered. An error when a registration is lost, and when a try
  // fails for another reason than the try before: errors of NodeRegistration. It must not destroy the object.
  using Changed = std::function<void(const absl::StatusOr<NodeIdentity>&)>;

  // `etcd` and `clock` (BootClock(), but for tests) must outlive this object.
  NodeMembership(Etcd* etcd, Clock* clock, Options options, NodeRegistration::Remember remember,
                 NewIncarnation new_incarnation, Changed changed);

  // Null while no daemon may act in this node's name, also before the end of the lease was noticed.
  const NodeIdentity* identity() const;
  void OnTick();  // At least once a second.
  // Gives the present registration up at the next OnTick, which reports `why`, and registers anew. No-op
  // without one.
  void RegisterAnew(const absl::Status& why);
  // Gives the name up, and does not register again. Call it once, and not in `changed`.
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
  std::string incarnation_;              // Empty: the next registration needs another one.
  std::unique_ptr<NodeRegistration> registration_;
  bool registered_ = false;
  absl::Status given_up_;  // Not OK: the registration is, for this reason.
  bool over_ = false;  // registration_ has failed or is lost; OnTick destroys it, for it may be calling us.
  bool released_ = false;
  std::string last_reason_;  // Of the last failure; empty after a success.
  Instant next_try_{};
  Duration wait_;
  CallbackScope callbacks_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_LEDGER_NODES_NODE_MEMBERSHIP_H_
