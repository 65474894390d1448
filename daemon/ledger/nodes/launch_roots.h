// Finds out that the nodes of a launch do not share a root.
#ifndef CKPTD_DAEMON_LEDGER_NODES_LAUNCH_ROOTS_H_
#define CKPTD_DAEMON_LEDGER_NODES_LAUNCH_ROOTS_H_

#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "daemon/etcd/etcd.h"
#include "daemon/ledger/nodes/node_identity.h"

namespace ckptd {

struct LaunchRoot {
  std::string prefix;     // Of all keys of ckptd in this etcd, with the slash at its end.
  std::string launch_id;  // The same on all nodes.
  std::string path;       // Of the root, as the processes of the launch name it.
  std::string run;        // The id that a file in the root holds: another folder has another one.
};

// Registers that `path` is this run on this node, until the node's lease ends, and compares. ROOT_NOT_SHARED
// if another node of the launch has registered another run for it: each of the two has a folder of its own
// there, and no checkpoint of all ranks could come about. NODE_REPLACED, and errors of etcd_errors.h.
void ClaimRoot(Etcd* etcd, const NodeIdentity& node, const LaunchRoot& root,
               absl::AnyInvocable<void(absl::Status)> claimed);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_LEDGER_NODES_LAUNCH_ROOTS_H_
