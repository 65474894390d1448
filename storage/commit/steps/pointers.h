// Pointer files: files in the root, beside the checkpoints, that tell another program's loader which
// checkpoint to take (DeepSpeed's `latest`). A save names them, and its manifest records them.
//
// The committed manifests are the truth. Among the checkpoints that name a pointer and are not known to be
// damaged, the newest decides its content. The file is updated after the commit, at a scan, when damage is
// found, and, if it could not be written, at the next commit. So a pointer only goes forward (except from a
// damaged checkpoint), in whatever order saves commit, and a crash between commit and pointer is repaired. A
// file that no committed manifest names is not ckptd's and is not touched.
#ifndef CKPTD_STORAGE_COMMIT_STEPS_POINTERS_H_
#define CKPTD_STORAGE_COMMIT_STEPS_POINTERS_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "storage/commit/checkpoint/scan.h"
#include "storage/commit/steps/types.h"
#include "storage/fs/file_system.h"

namespace ckptd {

class PointerWriter {
 public:
  // Makes each file in `temp_dir`, under a name that nobody else uses there, before it renames it into
  // `root`. The handles and their file system must outlive this object.
  PointerWriter(FileSystem* fs, Handle root, Handle temp_dir) : fs_(*fs), root_(root), temp_dir_(temp_dir) {}

  // Makes the next Update read the files again. Called after a scan.
  void Forget();
  // Gives every pointer the content that the newest checkpoint naming it says. What cannot be written is in
  // the warnings; the next call tries again.
  PointerFiles Update(const std::map<int64_t, CommittedCheckpoint>& committed);
  // Makes the pointers that this one of the checkpoints decides name the newest other one that names them; a
  // pointer that no other names is removed. Durable on return. DATA_LOSS, reason IO_ERROR, if one could not
  // be written: the next Update undoes the others.
  absl::StatusOr<PointerFiles> Release(const std::map<int64_t, CommittedCheckpoint>& committed,
                                       int64_t sequence);
  // Removes a pointer file durably, unless it has another content by now.
  absl::Status Remove(const std::string& name, const std::string& content);

 private:
  // What is known of one pointer file. After a failed rename, or a failed sync of it, nobody knows which
  // content a crash would leave: then there are several, and the file is written again whatever a read of it
  // says.
  struct File {
    std::set<std::string> contents;
    bool sure = true;
    bool unread = false;  // Reading it failed, so `contents` may be incomplete.
  };

  File& Look(const std::string& name);
  absl::Status Write(const std::string& name, const std::string& content, File& file);

  FileSystem& fs_;
  const Handle root_;
  const Handle temp_dir_;
  std::map<std::string, File> files_;  // The files that were read or written.
};

// If a re-save does not name a pointer that points at the checkpoint it replaces, the new checkpoint takes
// the pointer over. Otherwise the pointer would go back or dangle. Pointers for which the manifest has no
// room are left out.
absl::Status TakeOverPointers(FileSystem& fs, Handle root, const storage::v1::ManifestSummary& old,
                              storage::v1::ManifestSummary& summary);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_COMMIT_STEPS_POINTERS_H_
