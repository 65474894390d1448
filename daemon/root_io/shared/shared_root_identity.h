// Identifies a node and its daemon in a root that several nodes share.
#ifndef CKPTD_DAEMON_ROOT_IO_SHARED_SHARED_ROOT_IDENTITY_H_
#define CKPTD_DAEMON_ROOT_IO_SHARED_SHARED_ROOT_IDENTITY_H_

#include <string>

namespace ckptd {

struct SharedRootIdentity {
  std::string node;         // Its name in the cluster.
  std::string incarnation;  // Of this daemon; random: no other daemon of the node has it.
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ROOT_IO_SHARED_SHARED_ROOT_IDENTITY_H_
