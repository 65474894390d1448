// The directories of saves in flight in a root that several nodes share, and the trash. The argument is at
// the top of shared_inflight.cc.
#ifndef CKPTD_STORAGE_COMMIT_SHARED_SAVE_SHARED_INFLIGHT_H_
#define CKPTD_STORAGE_COMMIT_SHARED_SAVE_SHARED_INFLIGHT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/commit/shared/run/shared_layout.h"
#include "storage/commit/shared/save/shared_publish.h"
#include "storage/fs/file_system.h"

namespace ckptd {

// Makes a directory for a save, durably, under a new name. By the run's coordinator alone. The ledger gets
// the name afterwards, in a transaction that counts only while the same coordinator, of the same term, holds
// the leadership. If the answer or that transaction is lost, this coordinator or the next one makes another
// directory: the one that the ledger names counts, and any other is discarded. INVALID_ARGUMENT for a tag or
// a sequence that cannot be one.
absl::StatusOr<SharedInflight> MakeSharedInflight(const SharedLayout& layout, const std::string& tag,
                                                  int64_t sequence);

// Opens it, on any node. The handle stays valid wherever the directory is moved. LOOK_AGAIN if it is not in
// flight: this node does not see it yet, or the ledger knows what has become of the save. Never makes it.
absl::StatusOr<ScopedHandle> OpenSharedInflight(const SharedLayout& layout, const SharedInflight& save);

// As this node sees them now.
absl::StatusOr<std::vector<SharedInflight>> ListInFlight(const SharedLayout& layout);
absl::StatusOr<std::vector<SharedInflight>> ListInTrash(const SharedLayout& layout);

// Moves it to the trash. OK: it is not in flight any more, durably, whichever daemon has moved it. For a save
// that the ledger says has ended otherwise than as a checkpoint, or for a name that the ledger gives to no
// save.
absl::Status DiscardShared(const SharedLayout& layout, const std::string& name);

// Removes one directory of the trash until the budget is spent. True: it is gone. For a save that the ledger
// says has ended; not for one that is being published, which the next coordinator may have to find here.
// Several daemons may call it at once.
absl::StatusOr<bool> RemoveFromSharedTrash(const SharedLayout& layout, const std::string& name,
                                           RemovalBudget& budget);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_COMMIT_SHARED_SAVE_SHARED_INFLIGHT_H_
