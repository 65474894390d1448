#include "daemon/base/unix_listener.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

constexpr Duration kRetry = std::chrono::milliseconds(20);

absl::StatusOr<sockaddr_un> AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return MakeError(absl::StatusCode::kInvalidArgument, "INVALID_PATH",
                     absl::StrCat("socket path \"", path, "\" has ", path.size(),
                                  " bytes; it must have 1 to ", sizeof(address.sun_path) - 1));
  }
  std::copy(path.begin(), path.end(), address.sun_path);
  return address;
}

// Removes the socket at the path if no process listens on it.
absl::Status RemoveStale(const std::string& path, const sockaddr_un& address, int type) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) {
    return errno == ENOENT ? absl::OkStatus() : ErrnoError(errno, absl::StrCat("stat ", path));
  }
  if (!S_ISSOCK(info.st_mode)) {
    return MakeError(
        absl::StatusCode::kFailedPrecondition, "NOT_A_SOCKET",
        absl::StrCat(path, " exists and is not a socket; remove it or choose another socket_path"));
  }
  UniqueFd probe(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe) return ErrnoError(errno, "socket");
  if (::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ||
      errno == EAGAIN) {
    return MakeError(
        absl::StatusCode::kFailedPrecondition, "SOCKET_IN_USE",
        absl::StrCat("another process listens on ", path, "; stop it or choose another socket_path"));
  }
  if (errno != ECONNREFUSED) return ErrnoError(errno, absl::StrCat("connect to ", path));
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return ErrnoError(errno, absl::StrCat("unlink ", path));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<UniqueFd> ListenUnix(const UnixListenerOptions& options) {
  CKPTD_ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(options.path));
  const Instant deadline = SystemClock().Now() + options.timeout;
  absl::Status removed = RemoveStale(options.path, address, options.type);
  while (ReasonOf(removed) == "SOCKET_IN_USE" && SystemClock().Now() < deadline) {
    std::this_thread::sleep_for(
        kRetry);  // The kernel does not notify when the last reference to a socket is gone.
    removed = RemoveStale(options.path, address, options.type);
  }
  CKPTD_RETURN_IF_ERROR(removed);
  UniqueFd listener(::socket(AF_UNIX, options.type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener) return ErrnoError(errno, "socket");
  // Set mode and group before listen(): until then the socket refuses every connection.
  if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    const bool has_no_directory = errno == ENOENT;
    return ErrnoError(errno, absl::StrCat("bind ", options.path,
                                          has_no_directory ? " (its directory is missing: make it, or choose "
                                                             "another path in the configuration)"
                                                           : ""));
  }
  const char* path = options.path.c_str();
  if (options.group && ::chown(path, static_cast<uid_t>(-1), *options.group) != 0) {
    return ErrnoError(errno,
                      absl::StrCat("give ", options.path, " to group ", *options.group, " (socket_group)"));
  }
  if (::chmod(path, options.mode) != 0) return ErrnoError(errno, absl::StrCat("chmod ", options.path));
  if (::listen(listener.get(), 512) != 0) return ErrnoError(errno, absl::StrCat("listen on ", options.path));
  return listener;
}

}  // namespace ckptd
