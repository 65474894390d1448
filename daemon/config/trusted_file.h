// Reads the files that the configuration names: secrets, and certificates that the daemon trusts.
#ifndef CKPTD_DAEMON_CONFIG_TRUSTED_FILE_H_
#define CKPTD_DAEMON_CONFIG_TRUSTED_FILE_H_

#include <sys/types.h>
#include <unistd.h>

#include <set>
#include <string>

#include "absl/status/statusor.h"

namespace ckptd {

enum class FileAccess {
  kPublic,  // Other users may read the file.
  kSecret,  // Other users must not read the file.
};

// Returns the content of a regular file of at most 1 MiB. INVALID_ARGUMENT, with the command that repairs it,
// if another user than root or the daemon's own owns the file or may write it, or may read a secret. Never
// blocks on a FIFO. Other errors are those of ErrnoError. Every message begins with the path or names it.
// `owners`: whose files are trusted.
absl::StatusOr<std::string> ReadTrustedFile(const std::string& path, FileAccess access,
                                            const std::set<uid_t>& owners = {0, ::geteuid()});

}  // namespace ckptd
#endif  // CKPTD_DAEMON_CONFIG_TRUSTED_FILE_H_
