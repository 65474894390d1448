// Runs file operations with another user's rights, on one thread only.
#ifndef CKPTD_STORAGE_FS_ACTING_AS_H_
#define CKPTD_STORAGE_FS_ACTING_AS_H_

#include <sys/types.h>

#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "storage/fs/posix_file_system.h"

namespace ckptd {

// The user that file operations run as; checked once when it is made. Thread-safe.
class Actor {
 public:
  // PERMISSION_DENIED, reason USER_MISMATCH, if this process cannot act as `user`; see MakePosixFileSystem.
  static absl::StatusOr<Actor> Make(const std::optional<FileUser>& user);

  // While a Scope lives, this thread's file operations have the user's rights: files are made as that user,
  // and root's capabilities over files (CAP_DAC_OVERRIDE and the like) are off, because the kernel ties them
  // to fsuid.
  //
  // Uses raw system calls, because the C library's setgroups changes every thread of the process. If the own
  // rights cannot be restored the process aborts: the thread would go on as another user.
  class Scope {
   public:
    explicit Scope(const Actor& actor);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    // Not OK if the rights could not be taken; then nothing has changed.
    const absl::Status& status() const { return status_; }

   private:
    void Restore();

    const Actor& actor_;
    absl::Status status_;
  };

 private:
  Actor() = default;

  std::optional<FileUser> user_;  // Unset: this process's own user.
  uid_t own_uid_ = 0;
  gid_t own_gid_ = 0;
  std::vector<gid_t> own_groups_;
};

}  // namespace ckptd
#endif  // CKPTD_STORAGE_FS_ACTING_AS_H_
