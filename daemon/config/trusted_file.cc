#include "daemon/config/trusted_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/base/unique_fd.h"

namespace ckptd {
namespace {

constexpr size_t kMaxFileBytes = size_t{1} << 20;

absl::Status CheckAccess(const std::string& path, const struct stat& found, FileAccess access,
                         const std::set<uid_t>& owners) {
  if (!S_ISREG(found.st_mode))
    return InvalidArgument(absl::StrCat("cannot read ", path, ": it is not a regular file"));
  if (!owners.contains(found.st_uid)) {
    return InvalidArgument(absl::StrFormat("%s belongs to uid %d, who can change it; run `chown %d %s`", path,
                                           found.st_uid, ::geteuid(), path));
  }
  if (access == FileAccess::kSecret && (found.st_mode & (S_IROTH | S_IWOTH)) != 0) {
    return InvalidArgument(
        absl::StrFormat("%s has mode %04o: every user of this machine can read or change it; "
                        "run `chmod 600 %s`",
                        path, found.st_mode & 07777, path));
  }
  if ((found.st_mode & S_IWOTH) != 0) {
    return InvalidArgument(
        absl::StrFormat("%s has mode %04o: every user of this machine can change it; run `chmod o-w %s`",
                        path, found.st_mode & 07777, path));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> ReadTrustedFile(const std::string& path, FileAccess access,
                                            const std::set<uid_t>& owners) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!file) return ErrnoError(errno, absl::StrCat("cannot read ", path));
  struct stat found = {};
  if (::fstat(file.get(), &found) != 0) return ErrnoError(errno, absl::StrCat("cannot read ", path));
  CKPTD_RETURN_IF_ERROR(CheckAccess(path, found, access, owners));
  std::string text(kMaxFileBytes + 1, '\0');
  size_t size = 0;
  while (size < text.size()) {
    const ssize_t read = ::read(file.get(), text.data() + size, text.size() - size);
    if (read < 0 && errno == EINTR) continue;
    if (read < 0) return ErrnoError(errno, absl::StrCat("cannot read ", path));
    if (read == 0) break;
    size += static_cast<size_t>(read);
  }
  if (size > kMaxFileBytes) {
    return InvalidArgument(
        absl::StrCat(path, " has more than ", kMaxFileBytes, " bytes; is it another file?"));
  }
  text.resize(size);
  return text;
}

}  // namespace ckptd
