// Takes over what the service manager kept for this daemon, and arranges for the next one.
#ifndef CKPTD_DAEMON_RUNTIME_START_MANAGER_INHERITANCE_H_
#define CKPTD_DAEMON_RUNTIME_START_MANAGER_INHERITANCE_H_

#include <memory>

#include "daemon/succession/inheritance.h"
#include "daemon/succession/seal_journal.h"
#include "daemon/systemd/manager_store.h"
#include "daemon/systemd/notifier.h"

namespace ckptd {

struct ManagerInheritance {
  Inheritance left;                      // What the daemon before this one left; its `journal` has moved.
  std::unique_ptr<ManagerStore> store;   // Null: the service manager keeps no descriptors.
  std::unique_ptr<SealJournal> journal;  // Null: no service manager would keep it.
};

// Takes the descriptors, continues the journal or makes a new one, and logs what is lost. Call it once, after
// the state directory is locked: the daemon before this one has ended then. `notifier` must outlive the
// store.
ManagerInheritance TakeManagerInheritance(Notifier* notifier);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_RUNTIME_START_MANAGER_INHERITANCE_H_
