#include "daemon/sessions/peer_namespaces.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstdlib>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "storage/base/unique_fd.h"

namespace ckptd {
namespace {

constexpr int kSoPeerPidfd = 77;  // SO_PEERPIDFD, Linux 6.5.
constexpr size_t kMaxBytes = 1 << 20;

// A process's mount at "/" and its user id map, as the kernel's text, for comparison.
struct View {
  std::string
      root;  // "ID DEVICE DIRECTORY-IN-ITS-FILE-SYSTEM" of the mount at "/"; empty: "/" is no mount point.
  std::string uid_map;
};

// Returns a pidfd of the peer. On kernels without SO_PEERPIDFD it is of the process that has the pid now.
UniqueFd PidfdOfPeer(int socket, pid_t pid) {
  int fd = -1;
  socklen_t size = sizeof(fd);
  if (::getsockopt(socket, SOL_SOCKET, kSoPeerPidfd, &fd, &size) == 0) return UniqueFd(fd);
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

bool HasEnded(const UniqueFd& pidfd) {
  if (!pidfd) return true;
  pollfd one{pidfd.get(), POLLIN, 0};
  return ::poll(&one, 1, 0) != 0;
}

// Returns fields 1, 3 and 4 of a line of mountinfo if its mount point is "/", else "".
std::string RootMountOf(std::string_view line) {
  const std::vector<std::string> fields = absl::StrSplit(std::string(line), absl::MaxSplits(' ', 5));
  if (fields.size() < 6 || fields[4] != "/") return "";
  return absl::StrCat(fields[0], " ", fields[2], " ", fields[3]);
}

// Finds the mount at "/". Reads in pieces and stops at its line, because a container may have thousands of
// mounts. Returns an errno, or 0.
int ReadRootMount(const std::string& path, std::string& root) {
  UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return errno;
  std::array<char, 16384> buffer;
  std::string rest;
  for (size_t total = 0; total < kMaxBytes;) {
    const ssize_t size = ::read(file.get(), buffer.data(), buffer.size());
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return errno;
    if (size == 0) break;
    total += static_cast<size_t>(size);
    rest.append(buffer.data(), static_cast<size_t>(size));
    for (size_t end; (end = rest.find('\n')) != std::string::npos; rest.erase(0, end + 1)) {
      root = RootMountOf(std::string_view(rest).substr(0, end));
      if (!root.empty()) return 0;
    }
  }
  return 0;
}

int ReadSmall(const std::string& path, std::string& text) {
  UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return errno;
  std::array<char, 16384> buffer;  // A uid map has at most 340 lines.
  const ssize_t size = ::read(file.get(), buffer.data(), buffer.size());
  if (size < 0) return errno;
  text.assign(buffer.data(), static_cast<size_t>(size));
  return 0;
}

int ReadView(const std::string& proc, pid_t pid, View& view) {
  const std::string folder = absl::StrCat(proc, "/", pid);
  if (const int error = ReadRootMount(folder + "/mountinfo", view.root); error != 0) return error;
  return ReadSmall(folder + "/uid_map", view.uid_map);
}

// Whether `proc` shows this process under its own pid. If not, it belongs to another pid namespace, and its
// pids are those of other processes.
bool IsOurProc(const std::string& proc) {
  char self[32];
  const ssize_t size = ::readlink(absl::StrCat(proc, "/self").c_str(), self, sizeof(self));
  return size > 0 && std::string_view(self, static_cast<size_t>(size)) == std::to_string(::getpid());
}

std::string LinkOf(const std::string& path) {
  char target[PATH_MAX];
  const ssize_t size = ::readlink(path.c_str(), target, sizeof(target));
  return size > 0 ? std::string(target, static_cast<size_t>(size)) : "";
}

// Compares root directories that are no mount points, as after chroot, which mountinfo does not show. Works
// only for peers that this process may inspect.
bool HasOurRoot(const std::string& proc, pid_t pid) {
  const std::string own = absl::StrCat(proc, "/", ::getpid()), peer = absl::StrCat(proc, "/", pid);
  for (const char* name : {"/ns/mnt", "/ns/user"}) {
    const std::string link = LinkOf(own + name);
    if (link.empty() || link != LinkOf(peer + name)) return false;
  }
  struct stat ours {
  }, theirs{};
  return ::stat((own + "/root").c_str(), &ours) == 0 && ::stat((peer + "/root").c_str(), &theirs) == 0 &&
         ours.st_dev == theirs.st_dev && ours.st_ino == theirs.st_ino;
}

PeerNamespaces Foreign(const View& peer, std::string why) {
  const int64_t mount = peer.root.empty() ? -1 : std::atoll(peer.root.c_str());
  return {PeerOrigin::kForeign, mount > 0 ? mount : -1, std::move(why)};
}

PeerNamespaces Unknown(std::string why) { return {PeerOrigin::kUnknown, 0, std::move(why)}; }

}  // namespace

std::optional<mode_t> UmaskOfPeer(pid_t pid, const std::string& proc) {
  std::string status;
  if (pid <= 0 || !IsOurProc(proc) || ReadSmall(absl::StrCat(proc, "/", pid, "/status"), status) != 0) {
    return std::nullopt;
  }
  constexpr std::string_view kUmask = "\nUmask:\t";
  const size_t at = status.find(kUmask);
  if (at == std::string::npos) return std::nullopt;
  const char* begin = status.data() + at + kUmask.size();
  unsigned umask = 0;
  const auto [stop, error] = std::from_chars(begin, status.data() + status.size(), umask, 8);
  if (error != std::errc() || umask > 0777) return std::nullopt;
  return static_cast<mode_t>(umask);
}

PeerNamespaces NamespacesOfPeer(int socket, pid_t pid, const std::string& proc) {
  if (pid <= 0) return Foreign({}, "its process is in another pid namespace");
  if (!IsOurProc(proc)) return Unknown(absl::StrCat(proc, " does not show the daemon's pid namespace"));
  // Take the pidfd first and check it last: if the pid was reused in between, the peer has ended, and the
  // namespaces of the new process must not count as its own.
  const UniqueFd pidfd = PidfdOfPeer(socket, pid);
  View own, first, peer;
  const int own_error = ReadView(proc, ::getpid(), own);
  const int error = ReadView(proc, pid, peer);
  const bool same_chroot = own.root.empty() && peer.root.empty() && HasOurRoot(proc, pid);
  if (HasEnded(pidfd)) return Foreign({}, "its process has ended");
  if (own_error != 0 || error != 0) {
    return Unknown(absl::StrCat("the daemon cannot read ", proc, "/", pid,
                                "/mountinfo and uid_map; is /proc mounted with hidepid?"));
  }
  if (peer.uid_map != own.uid_map) return Foreign(peer, "it is in another user namespace");
  if (same_chroot) return {PeerOrigin::kHost, 0, ""};
  if (peer.root.empty()) return Foreign(peer, "it has another root directory");
  if (peer.root == own.root) return {PeerOrigin::kHost, 0, ""};
  // A service manager may run this daemon in its own mount namespace, with read-only system directories. Then
  // the host's namespace is that of process 1.
  if (ReadView(proc, 1, first) == 0 && peer.root == first.root && first.uid_map == own.uid_map) {
    return {PeerOrigin::kHost, 0, ""};
  }
  return Foreign(peer, "it is in another mount namespace");
}

}  // namespace ckptd
