// The kernel's file systems. Handles are file descriptors.
#ifndef CKPTD_STORAGE_FS_POSIX_FILE_SYSTEM_H_
#define CKPTD_STORAGE_FS_POSIX_FILE_SYSTEM_H_

#include <sys/types.h>

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "storage/fs/file_system.h"

namespace ckptd {

// The user whose rights file operations have. If this process is root, they run with the user's fsuid, fsgid
// and groups (setfsuid is per thread, and is undone after each operation). Any other process must be that
// user.
struct FileUser {
  uid_t uid;
  gid_t gid;
  std::vector<gid_t> groups;  // The supplementary groups.
  // The umask of new files and directories. Read each time, because a later trainer of the user may have
  // another one. Null: 022. The owner's own bits are never masked.
  std::shared_ptr<std::atomic<mode_t>> umask = nullptr;
};

// PERMISSION_DENIED, reason USER_MISMATCH, if this process cannot act as `user`. Without a user operations
// run as this process. The umask of this process applies as well, for any user: a daemon sets it to 0.
absl::StatusOr<std::unique_ptr<FileSystem>> MakePosixFileSystem(std::optional<FileUser> user = std::nullopt);

// Opens a directory by its absolute path. This is the only function that follows symbolic links.
absl::StatusOr<Handle> OpenRootDirectory(const std::string& absolute_path,
                                         const std::optional<FileUser>& user);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_FS_POSIX_FILE_SYSTEM_H_
