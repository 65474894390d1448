// Whether a root belongs to one node or to several: each way keeps what it knows of the run in a place of its
// own, and is blind for the other one's. So a root that has been used in one way is not opened in the other
// one.
//
//   <root>/.ckptd/nodes/<node>/run   the run record of a node that has used the root alone
//   <root>/.ckptd/nodes/<node>/lock  locked while its daemon has the root open
//   <root>/.ckptd/shared/run         the id of a run that several nodes share
#ifndef CKPTD_STORAGE_COMMIT_STEPS_ROOT_SHARING_H_
#define CKPTD_STORAGE_COMMIT_STEPS_ROOT_SHARING_H_

#include "absl/status/status.h"
#include "storage/fs/file_system.h"

namespace ckptd {

// Before a node opens the root for itself. FAILED_PRECONDITION, reason ROOT_SHARING_CHANGED, if nodes share
// it.
absl::Status CheckNotShared(FileSystem& fs, Handle root);

// Before a node opens the root as one of several. FAILED_PRECONDITION, reason ROOT_SHARING_CHANGED, if a node
// has used it alone, and ROOT_LOCKED if one has it open so (as far as the file system's locks reach). A node
// that has only opened it, and joined no run, has left nothing that counts.
absl::Status CheckNotOfOneNode(FileSystem& fs, Handle root);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_COMMIT_STEPS_ROOT_SHARING_H_
