// Detects that the nodes of a launch do not share a root.
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
  std::string run;        // The run's id, from a file in the root; another folder has another id.
};

// Registers, until the node's lease ends, that `path` holds `run` on this node, and compares that with the
// other nodes of the launch. ROOT_NOT_SHARED if one of them has registered another run for the path: the two
// nodes have different folders there, so no checkpoint of all ranks could be made. Other errors:
// NODE_REPLACED, and those of etcd_errors.h.
void ClaimRoot(Etcd* etcd, const NodeIdentity& node, const LaunchRoot& root,
               absl::AnyInvocable<void(absl::Status)> claimed);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_LEDGER_NODES_LAUNCH_ROOTS_H_
