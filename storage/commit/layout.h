// The directories of ours beneath a root, open, and the lock on this node's.
#ifndef CKPTD_STORAGE_COMMIT_LAYOUT_H_
#define CKPTD_STORAGE_COMMIT_LAYOUT_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/fs/file_system.h"

namespace ckptd {

struct Layout {
  FileSystem* fs = nullptr;
  Handle root = -1;
  std::string node_path;  // ".ckptd/nodes/<node>": for messages.
  ScopedHandle ours;      // <root>/.ckptd
  ScopedHandle node;      // <root>/.ckptd/nodes/<node>
  ScopedHandle lock;      // Held for as long as this lives.
  ScopedHandle inflight;
  ScopedHandle trash;
};

// Makes what is missing, durably, and takes the lock first: nothing of another daemon's is looked at without
// it. FAILED_PRECONDITION: reason ROOT_LOCKED, reason ROOT_UNSUITABLE for a root that may not be written.
absl::StatusOr<Layout> OpenLayout(FileSystem* fs, Handle root, const std::string& node);

// Makes durable every name that an earlier daemon may have left renamed but not synced: only then may what a
// scan finds be called committed, or what lies in trash be removed.
absl::Status SyncNames(const Layout& layout);

// A name under inflight/ or trash/ that was never there before.
std::string FreshName(const std::string& tag, int64_t sequence);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_COMMIT_LAYOUT_H_
