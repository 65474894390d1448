// Pointer files: files in the root, beside the checkpoints, whose content says which one a framework's own
// loader is to take (DeepSpeed's `latest`). A save names them, and its manifest has them.
//
// The committed manifests are the truth: of all checkpoints that name a pointer, and are not known to be
// damaged, the newest decides, and the file follows, after the commit, at a scan, when damage is found, and
// at the next commit where it could not be written. So a pointer only goes forward (but from one that is
// damaged), whatever order saves are committed in, and a crash between commit and pointer is made good. A
// name that no committed manifest has is not ours and is not touched.
#ifndef CKPTD_STORAGE_COMMIT_POINTERS_H_
#define CKPTD_STORAGE_COMMIT_POINTERS_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "storage/commit/layout.h"
#include "storage/commit/scan.h"
#include "storage/commit/types.h"
#include "storage/fs/file_system.h"

namespace ckptd {

class PointerWriter {
 public:
  // Both stay the caller's.
  explicit PointerWriter(const Layout* layout) : layout_(*layout), fs_(*layout->fs) {}

  // Before Update after a scan: the files are read again.
  void Forget();
  // Brings every pointer to what the newest checkpoint that names it says. What cannot be written is in the
  // warnings, and is tried again by the next call.
  PointerFiles Update(const std::map<int64_t, CommittedCheckpoint>& committed);

 private:
  // One pointer file. Several contents, when a rename or the sync after it failed: then nobody knows which
  // one a crash would leave, and it is written anew whatever a look at it says.
  struct File {
    std::set<std::string> contents;
    bool sure = true;
    bool unread = false;  // Reading it failed, so `contents` may lack what it has.
  };

  File& Look(const std::string& name);
  absl::Status Write(const std::string& name, const std::string& content, File& file);

  const Layout& layout_;
  FileSystem& fs_;
  std::map<std::string, File> files_;  // Those that were looked at or written.
};

// A re-save that does not name a pointer which points at the checkpoint in its place takes it over, else the
// pointer would go back, or would be left to dangle. What does not fit beside its own is left out.
absl::Status TakeOverPointers(FileSystem& fs, Handle root, const storage::v1::ManifestSummary& old,
                              storage::v1::ManifestSummary& summary);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_COMMIT_POINTERS_H_
