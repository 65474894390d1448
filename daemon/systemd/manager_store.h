// The service manager as a store of descriptors: sd_notify(3)'s FDSTORE, FDSTOREREMOVE and BARRIER on the way
// there, sd_listen_fds(3)'s $LISTEN_FDS on the way back.
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

// How many descriptors the manager keeps for us: $FDSTORE, which systemd sets from version 254 on, and for
// older ones the unit does. 0: none.
int ManagerStoreSize();

// What the manager has kept from an earlier life of this service, all of it close-on-exec. The variables are
// taken out of the environment.
std::vector<NamedDescriptor> TakeManagerDescriptors();

class ManagerStore final : public DescriptorStore {
 public:
  // `most`: ManagerStoreSize(). `held`: names that it has already. `timeout`: for its answer to one Put.
  ManagerStore(Notifier* notifier, int most, std::set<std::string> held, Duration timeout);

  // RESOURCE_EXHAUSTED when it is full: a manager says nothing of what it does not take. DEADLINE_EXCEEDED
  // when it does not answer.
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
