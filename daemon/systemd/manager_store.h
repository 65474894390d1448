// The service manager as a descriptor store: sends with FDSTORE, FDSTOREREMOVE and BARRIER of sd_notify(3),
// and takes back with $LISTEN_FDS of sd_listen_fds(3).
#ifndef CKPTD_DAEMON_SYSTEMD_MANAGER_STORE_H_
#define CKPTD_DAEMON_SYSTEMD_MANAGER_STORE_H_

#include <set>
#include <string>
#include <vector>

#include "daemon/memory/descriptor_store.h"
#include "daemon/succession/inheritance.h"
#include "daemon/systemd/notifier.h"
#include "storage/base/clock.h"
#include "storage/base/mutex.h"

namespace ckptd {

// Returns how many descriptors the manager keeps: $FDSTORE, which systemd sets from version 254 on and the
// unit file sets for older ones. 0: none.
int ManagerStoreSize();

// Takes the descriptors that the manager kept from an earlier daemon, and makes them close-on-exec. Removes
// the variables from the environment, so that no child process takes them, too.
std::vector<NamedDescriptor> TakeManagerDescriptors();

class ManagerStore final : public DescriptorStore {
 public:
  // `most`: ManagerStoreSize(). `held`: names that the manager holds already. `timeout`: how long a Put waits
  // for the manager's answer.
  ManagerStore(Notifier* notifier, int most, std::set<std::string> held, Duration timeout);

  // RESOURCE_EXHAUSTED, reason STORE_FULL, when the store is full: the manager would drop the descriptor
  // silently. DEADLINE_EXCEEDED, reason MANAGER_SLOW, when the manager does not answer.
  absl::Status Put(const std::string& name, int fd) override;
  absl::Status Remove(const std::string& name) override;

 private:
  absl::Status AwaitBarrier();

  Notifier* const notifier_;
  const int most_;
  const Duration timeout_;
  Mutex mutex_;
  std::set<std::string> held_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_SYSTEMD_MANAGER_STORE_H_
