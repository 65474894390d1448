#include "daemon/systemd/notifier.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/unique_fd.h"

namespace ckptd {
namespace {

class SilentNotifier final : public Notifier {
 public:
  absl::Status Send(const std::string&) override { return absl::OkStatus(); }
  absl::Status SendWith(const std::string&, int) override {
    return absl::UnavailableError("there is no service manager");
  }
};

class DatagramNotifier final : public Notifier {
 public:
  DatagramNotifier(UniqueFd socket, sockaddr_un address, socklen_t length)
      : socket_(std::move(socket)), address_(address), length_(length) {}

  absl::Status Send(const std::string& state) override {
    const ssize_t sent = ::sendto(socket_.get(), state.data(), state.size(), MSG_NOSIGNAL | MSG_DONTWAIT,
                                  reinterpret_cast<const sockaddr*>(&address_), length_);
    if (sent < 0) return ErrnoError(errno, "send to $NOTIFY_SOCKET");
    return absl::OkStatus();
  }

  absl::Status SendWith(const std::string& state, int fd) override {
    sockaddr_un address = address_;
    iovec text = {const_cast<char*>(state.data()), state.size()};
    msghdr message{};
    message.msg_name = &address;
    message.msg_namelen = length_;
    message.msg_iov = &text;
    message.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(fd))] = {};
    if (fd >= 0) {
      message.msg_control = control;
      message.msg_controllen = sizeof(control);
      cmsghdr* rights = CMSG_FIRSTHDR(&message);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(sizeof(fd));
      std::memcpy(CMSG_DATA(rights), &fd, sizeof(fd));
    }
    ssize_t sent = 0;
    do {
      sent = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    if (sent < 0) return ErrnoError(errno, "send to $NOTIFY_SOCKET");
    return absl::OkStatus();
  }

 private:
  const UniqueFd socket_;
  const sockaddr_un address_;
  const socklen_t length_;
};

std::optional<int64_t> EnvironmentNumber(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr) return std::nullopt;
  const std::string_view view(text);
  int64_t number = 0;
  const auto [stop, error] = std::from_chars(view.data(), view.data() + view.size(), number);
  if (error != std::errc() || stop != view.data() + view.size()) return std::nullopt;
  return number;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Notifier>> MakeNotifier() {
  const char* variable = std::getenv("NOTIFY_SOCKET");
  const std::string name = variable == nullptr ? "" : variable;
  ::unsetenv("NOTIFY_SOCKET");
  if (name.empty()) return std::make_unique<SilentNotifier>();

  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if ((name[0] != '/' && name[0] != '@') || name.size() < 2 || name.size() >= sizeof(address.sun_path)) {
    return MakeError(absl::StatusCode::kInvalidArgument, "INVALID_ARGUMENT",
                     absl::StrCat("$NOTIFY_SOCKET is \"", name,
                                  "\", which is neither an absolute path nor @name of at most ",
                                  sizeof(address.sun_path) - 1, " bytes"));
  }
  std::copy(name.begin(), name.end(), address.sun_path);
  if (name[0] == '@') address.sun_path[0] = '\0';
  UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket) return ErrnoError(errno, "socket for $NOTIFY_SOCKET");
  const timeval timeout = {.tv_sec = 1, .tv_usec = 0};
  if (::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout)) != 0) {
    return ErrnoError(errno, "SO_SNDTIMEO for $NOTIFY_SOCKET");
  }
  // The length ends an abstract name. A path may be given with or without its NUL.
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
  return std::make_unique<DatagramNotifier>(std::move(socket), address, length);
}

std::optional<Duration> WatchdogInterval() {
  const std::optional<int64_t> micros = EnvironmentNumber("WATCHDOG_USEC");
  if (!micros || *micros <= 0) return std::nullopt;
  if (std::getenv("WATCHDOG_PID") != nullptr && EnvironmentNumber("WATCHDOG_PID") != ::getpid())
    return std::nullopt;
  return std::chrono::microseconds(*micros);
}

}  // namespace ckptd
