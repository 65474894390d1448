// Seam: who keeps descriptors for the next daemon when this one is killed. Real: the service manager
// (daemon/systemd/manager_store.h). Fake: any subclass.
#ifndef CKPTD_DAEMON_MEMORY_DESCRIPTOR_STORE_H_
#define CKPTD_DAEMON_MEMORY_DESCRIPTOR_STORE_H_

#include <string>

#include "absl/status/status.h"

namespace ckptd {

// Thread-safe.
class DescriptorStore {
 public:
  virtual ~DescriptorStore() = default;
  // OK: the store has it, whatever becomes of this process. May block for as long as the store takes to
  // answer.
  virtual absl::Status Put(const std::string& name, int fd) = 0;
  // Perhaps a little later, but before there is a next daemon. OK also when it does not have it.
  virtual absl::Status Remove(const std::string& name) = 0;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_MEMORY_DESCRIPTOR_STORE_H_
