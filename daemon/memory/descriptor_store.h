// Seam: keeps descriptors for the next daemon in case this one is killed. Real: the service manager
// (daemon/systemd/manager_store.h). Fakes: subclasses in tests.
#ifndef CKPTD_DAEMON_MEMORY_DESCRIPTOR_STORE_H_
#define CKPTD_DAEMON_MEMORY_DESCRIPTOR_STORE_H_

#include <string>

#include "absl/status/status.h"

namespace ckptd {

// Thread-safe.
class DescriptorStore {
 public:
  virtual ~DescriptorStore() = default;
  // OK: the store holds the descriptor, whatever happens to this process. Blocks until the store answers.
  virtual absl::Status Put(const std::string& name, int fd) = 0;
  // Removes a descriptor. May take effect later, but before the next daemon starts. OK also if there is none.
  virtual absl::Status Remove(const std::string& name) = 0;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_MEMORY_DESCRIPTOR_STORE_H_
