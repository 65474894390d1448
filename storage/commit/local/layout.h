// ckptd's own directories beneath a root, opened, and the lock on this node's directory.
#ifndef CKPTD_STORAGE_COMMIT_LOCAL_LAYOUT_H_
#define CKPTD_STORAGE_COMMIT_LOCAL_LAYOUT_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/fs/file_system.h"

namespace ckptd {

struct Layout {
  FileSystem* fs = nullptr;
  Handle root = -1;
  std::string node_path;  // ".ckptd/nodes/<node>", for messages.
  ScopedHandle ours;      // <root>/.ckptd
  ScopedHandle node;      // <root>/.ckptd/nodes/<node>
  ScopedHandle lock;      // Held as long as this object lives.
  ScopedHandle inflight;
  ScopedHandle trash;
};

// Takes the lock, and makes missing directories durably. Without the lock it looks at nothing, because
// another daemon may be working there. FAILED_PRECONDITION, reason ROOT_LOCKED, if another daemon holds the
// lock, or ROOT_UNSUITABLE if the root cannot be written.
absl::StatusOr<Layout> OpenLayout(FileSystem* fs, Handle root, const std::string& node);

// Syncs every directory in which an earlier daemon may have renamed something without a sync. Only then may a
// scan's result be called committed, or trash be removed.
absl::Status SyncNames(const Layout& layout);

// A name beneath inflight/ or trash/ that was never used before.
std::string FreshName(const std::string& tag, int64_t sequence);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_COMMIT_LOCAL_LAYOUT_H_
