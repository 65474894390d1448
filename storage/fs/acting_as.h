// File operations with another user's rights, on this thread only.
#ifndef CKPTD_STORAGE_FS_ACTING_AS_H_
#define CKPTD_STORAGE_FS_ACTING_AS_H_

#include <sys/types.h>

#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "storage/fs/posix_file_system.h"

namespace ckptd {

// Whom this process can act as, found out once. Thread-safe.
class Actor {
 public:
  // PERMISSION_DENIED, reason USER_MISMATCH, as MakePosixFileSystem says.
  static absl::StatusOr<Actor> Make(const std::optional<FileUser>& user);

  // While it lives, this thread's file operations have the user's rights: files are made as that user, and
  // root's capabilities over files (CAP_DAC_OVERRIDE and its like) are off, for the kernel ties them to
  // fsuid.
  //
  // By raw system calls: the C library's setgroups changes every thread of the process. A thread that could
  // not get its own rights back would go on as somebody else, so failing to undo it ends the process.
  class Scope {
   public:
    explicit Scope(const Actor& actor);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    // Why it did not work, else OK.
    const absl::Status& status() const { return status_; }

   private:
    void Restore();

    const Actor& actor_;
    absl::Status status_;
  };

 private:
  Actor() = default;

  std::optional<FileUser> user_;  // Empty: as this process is.
  uid_t own_uid_ = 0;
  gid_t own_gid_ = 0;
  std::vector<gid_t> own_groups_;
};

}  // namespace ckptd
#endif  // CKPTD_STORAGE_FS_ACTING_AS_H_
