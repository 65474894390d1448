// ckptd's directories beneath a root that several nodes share: one place in flight, and one trash, for all.
#ifndef CKPTD_STORAGE_COMMIT_SHARED_RUN_SHARED_LAYOUT_H_
#define CKPTD_STORAGE_COMMIT_SHARED_RUN_SHARED_LAYOUT_H_

#include "absl/status/statusor.h"
#include "storage/fs/file_system.h"

namespace ckptd {

// Who may change what is not decided here, and no lock is taken: the daemons agree through their ledger.
struct SharedLayout {
  FileSystem* fs = nullptr;
  Handle root = -1;
  ScopedHandle shared;    // <root>/.ckptd/shared
  ScopedHandle inflight;  // <root>/.ckptd/shared/inflight
  ScopedHandle trash;     // <root>/.ckptd/shared/trash
};

// Makes missing directories durably; several nodes may do that at once. `fs` and `root` must outlive it.
absl::StatusOr<SharedLayout> OpenSharedLayout(FileSystem* fs, Handle root);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_COMMIT_SHARED_RUN_SHARED_LAYOUT_H_
