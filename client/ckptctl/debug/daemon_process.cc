#include "client/ckptctl/debug/daemon_process.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/ckptctl/text/text.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/base/unique_fd.h"

namespace ckptd::ctl {
namespace {

constexpr size_t kMostBytes = size_t{4} << 20;
constexpr int kMostThreads = 500;

std::string Proc(pid_t pid, const std::string& name) { return absl::StrCat("/proc/", pid, "/", name); }

// The parts of a file in which each ends with a zero byte.
absl::StatusOr<std::vector<std::string>> ReadParts(pid_t pid, const std::string& name) {
  CKPTD_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(Proc(pid, name)));
  return std::vector<std::string>(absl::StrSplit(text, '\0', absl::SkipEmpty()));
}

// The lines of a file of /proc that begin with one of the names; all if there are no names.
void AppendLines(const std::string& path, const std::vector<std::string>& names, std::string* out) {
  const absl::StatusOr<std::string> text = ReadSmallFile(path);
  if (!text.ok()) return absl::StrAppend(out, path, ": ", std::string(text.status().message()), "\n");
  for (const absl::string_view line : absl::StrSplit(*text, '\n', absl::SkipEmpty())) {
    const bool wanted =
        names.empty() || std::any_of(names.begin(), names.end(),
                                     [&](const std::string& name) { return absl::StartsWith(line, name); });
    if (wanted) absl::StrAppend(out, line, "\n");
  }
}

// "D (disk sleep)" of the lines of /proc/PID/status.
std::string StateOf(const std::string& directory) {
  std::string line;
  AppendLines(directory + "/status", {"State:"}, &line);
  return OneLine(line.substr(std::min(line.size(), line.find(':') + 1)));
}

std::string FirstLine(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadSmallFile(path);
  return text.ok() ? text->substr(0, text->find('\n')) : "?";
}

}  // namespace

absl::StatusOr<DaemonProcess> FindDaemonProcess(const std::string& socket_path) {
  const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return ErrnoError(errno, "a socket");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (socket_path.size() >= sizeof address.sun_path)
    return InvalidArgument("the path of the socket is too long");
  std::memcpy(address.sun_path, socket_path.data(), socket_path.size());
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    if (errno == EAGAIN)
      return absl::UnavailableError(
          absl::StrCat("a process listens on ", socket_path, ", and takes no connections: it hangs"));
    return ErrnoError(errno, absl::StrCat("connecting to ", socket_path));
  }
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
    return ErrnoError(errno, "SO_PEERCRED");
  if (peer.pid == 0) {
    return absl::FailedPreconditionError(
        "the daemon is in another PID namespace; run this on the node, outside of the container");
  }
  return DaemonProcess{peer.pid, peer.uid};
}

absl::StatusOr<std::string> ReadSmallFile(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat found {};
  if (!file || ::fstat(file.get(), &found) != 0) return ErrnoError(errno, path);
  if (!S_ISREG(found.st_mode)) return InvalidArgument(absl::StrCat(path, " is no regular file"));
  std::string text;
  char piece[16384];
  while (text.size() < kMostBytes) {
    const ssize_t got = ::read(file.get(), piece, sizeof piece);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoError(errno, path);
    if (got == 0) break;
    text.append(piece, static_cast<size_t>(got));
  }
  return text;
}

absl::StatusOr<std::vector<std::string>> EnvironmentOf(pid_t pid) { return ReadParts(pid, "environ"); }
absl::StatusOr<std::vector<std::string>> CommandOf(pid_t pid) { return ReadParts(pid, "cmdline"); }

std::string OptionOf(const std::vector<std::string>& command, const std::string& name) {
  const std::string with_value = name + "=";
  for (size_t i = 1; i < command.size(); ++i) {
    if (command[i].starts_with(with_value)) return command[i].substr(with_value.size());
    if (command[i] == name && i + 1 < command.size()) return command[i + 1];
  }
  return "";
}

absl::StatusOr<std::string> LinkOf(pid_t pid, const std::string& name) {
  char target[PATH_MAX];
  const std::string path = Proc(pid, name);
  const ssize_t size = ::readlink(path.c_str(), target, sizeof target);
  if (size < 0) return ErrnoError(errno, path);
  return std::string(target, static_cast<size_t>(size));
}

// The last component that is a service: "0::/system.slice/ckptd.service".
std::string UnitOf(pid_t pid) {
  const absl::StatusOr<std::string> groups = ReadSmallFile(Proc(pid, "cgroup"));
  if (!groups.ok()) return "";
  std::string unit;
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(*groups, absl::ByAnyChar("/\n")))) {
    if (absl::EndsWith(part, ".service")) unit = part;
  }
  return unit;
}

absl::StatusOr<std::string> DescribeProcess(const DaemonProcess& process) {
  CKPTD_ASSIGN_OR_RETURN(const std::vector<std::string> command, CommandOf(process.pid));
  const auto link = [&](const char* name) {
    const absl::StatusOr<std::string> target = LinkOf(process.pid, name);
    return target.ok() ? *target : std::string(target.status().message());
  };
  std::string out =
      absl::StrCat("pid ", process.pid, ", uid ", process.uid, "\n", "command: ", absl::StrJoin(command, " "),
                   "\n", "program: ", link("exe"), "\n");
  struct stat program {};
  if (::stat(Proc(process.pid, "exe").c_str(), &program) == 0) {
    absl::StrAppend(&out, "program: ", program.st_size, " bytes, of ",
                    LocalTime(int64_t{program.st_mtim.tv_sec} * 1'000'000), "\n");
  }
  struct stat start {};
  if (::stat(Proc(process.pid, "").c_str(), &start) == 0)
    absl::StrAppend(&out, "started: ", LocalTime(int64_t{start.st_mtim.tv_sec} * 1'000'000), "\n");
  absl::StrAppend(&out, "standard error: ", link("fd/2"), "\n");
  AppendLines(Proc(process.pid, "status"),
              {"State", "Uid", "Gid", "Groups", "Vm", "Rss", "Threads", "Cap", "Seccomp"}, &out);
  absl::StrAppend(&out, "\n");
  AppendLines(Proc(process.pid, "cgroup"), {}, &out);
  absl::StrAppend(&out, "\n");
  AppendLines(Proc(process.pid, "limits"), {}, &out);
  return out;
}

absl::StatusOr<std::string> DescribeThreads(pid_t pid) {
  std::error_code error;
  std::filesystem::directory_iterator threads(Proc(pid, "task"), error);
  if (error) return ErrnoError(error.value(), Proc(pid, "task"));
  Table table({"THREAD", "NAME", "STATE", "WAITS IN"});
  int count = 0;
  for (const std::filesystem::directory_entry& thread : threads) {
    const std::string directory = thread.path().string();
    if (++count > kMostThreads) continue;
    table.Add({thread.path().filename().string(), FirstLine(directory + "/comm"), StateOf(directory),
               FirstLine(directory + "/wchan")});
  }
  std::string out = table.ToString();
  if (count > kMostThreads) absl::StrAppend(&out, "and ", count - kMostThreads, " more\n");
  return out;
}

}  // namespace ckptd::ctl
