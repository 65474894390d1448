// The directories above a checkpoint's files: made before the files are written, synced after that.
#ifndef CKPTD_STORAGE_COMMIT_CHECKPOINT_CHECKPOINT_TREE_H_
#define CKPTD_STORAGE_COMMIT_CHECKPOINT_CHECKPOINT_TREE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "storage/fs/file_system.h"

namespace ckptd {

// Makes the parent directories of these files beneath `dir`. Existing ones are fine. INVALID_PATH for a path
// that no checkpoint may have; ALREADY_EXISTS, reason FILE_CONFLICT, if a file has the place of a directory.
absl::Status MakeParents(FileSystem& fs, Handle dir, const std::vector<std::string>& paths);

// Syncs the parent directories of these files, innermost first, and then `dir`.
absl::Status SyncDirectories(FileSystem& fs, Handle dir, const std::vector<std::string>& paths);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_COMMIT_CHECKPOINT_CHECKPOINT_TREE_H_
