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

// Whose rights file operations use. Root does them with the user's fsuid, fsgid and groups (setfsuid is per
// thread and is undone after each operation); anyone else must be that user already.
struct FileUser {
  uid_t uid;
  gid_t gid;
  std::vector<gid_t> groups;  // Supplementary ones.
  // Of new files and directories; looked at each time, since a later trainer of the user may have another
  // one. Null: 022. The user's own rights stay.
  std::shared_ptr<std::atomic<mode_t>> umask = nullptr;
};

// PERMISSION_DENIED, reason USER_MISMATCH, when this process cannot act as `user`. Without a user: as this
// process. The umask of this process counts, too, whoever the user is: a daemon sets it to 0.
absl::StatusOr<std::unique_ptr<FileSystem>> MakePosixFileSystem(std::optional<FileUser> user = std::nullopt);

// Opens an absolute path as a directory: the only place where a path is taken as it is (its links are
// followed).
absl::StatusOr<Handle> OpenRootDirectory(const std::string& absolute_path,
                                         const std::optional<FileUser>& user);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_FS_POSIX_FILE_SYSTEM_H_
