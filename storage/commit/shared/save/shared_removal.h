// How a checkpoint leaves a root that several nodes share. The argument is at the top of shared_removal.cc.
#ifndef CKPTD_STORAGE_COMMIT_SHARED_SAVE_SHARED_REMOVAL_H_
#define CKPTD_STORAGE_COMMIT_SHARED_SAVE_SHARED_REMOVAL_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "storage/commit/shared/run/shared_layout.h"
#include "storage/fs/file_system.h"

namespace ckptd {

// Removes the checkpoint of this tag and sequence, which no node reads or will read, as the ledger knows,
// until the budget is spent. `inode`: of the directory that the decision names; another directory with this
// checkpoint is one that was put back since, and stays. 0: any. True: nothing of it is at the tag any more,
// durably, and neither is the directory of the decision, if it is empty; what else is there stays. From its
// first step on, no daemon takes it for a checkpoint. Several daemons may call it at once, and a daemon may
// go on with it after a pause of any length. Errors: those of the file system, and CORRUPT_MANIFEST, for then
// it is unknown whose it is.
absl::StatusOr<bool> RemoveShared(const SharedLayout& layout, const std::string& tag, int64_t sequence,
                                  RemovalBudget& budget, uint64_t inode = 0);

// The inode of the directory of this tag, if it holds the checkpoint of this sequence: what a decision to
// remove the checkpoint names. Nodes of one file system see the same inode, and perhaps different devices.
// LOOK_AGAIN if the checkpoint is not to be seen at its tag.
absl::StatusOr<uint64_t> InodeOfShared(const SharedLayout& layout, const std::string& tag, int64_t sequence);

// The sequence of the checkpoint that was at the tag, if its removal has begun and not ended; 0 otherwise.
absl::StatusOr<int64_t> SequenceBeingRemoved(const SharedLayout& layout, const std::string& tag);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_COMMIT_SHARED_SAVE_SHARED_REMOVAL_H_
