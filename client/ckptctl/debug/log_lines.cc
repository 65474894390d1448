#include "client/ckptctl/debug/log_lines.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/ckptctl/text/text.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/base/unique_fd.h"

extern char** environ;

namespace ckptd::ctl {
namespace {

constexpr int kLines = 2000;
constexpr off_t kMostOfFile = off_t{1} << 20;
constexpr size_t kMostOutput = size_t{4} << 20;
using Clock = std::chrono::steady_clock;

// The last whole lines of a file.
absl::StatusOr<std::string> EndOf(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat found {};
  if (!file || ::fstat(file.get(), &found) != 0) return ErrnoError(errno, path);
  if (!S_ISREG(found.st_mode)) return InvalidArgument(absl::StrCat(path, " is no regular file"));
  const off_t begin = std::max<off_t>(0, found.st_size - kMostOfFile);
  std::string text(static_cast<size_t>(found.st_size - begin), '\0');
  const ssize_t got = ::pread(file.get(), text.data(), text.size(), begin);
  if (got < 0) return ErrnoError(errno, path);
  text.resize(static_cast<size_t>(got));
  if (begin > 0) text.erase(0, text.find('\n') + 1);
  const auto lines = std::count(text.begin(), text.end(), '\n');
  size_t at = 0;
  for (auto i = lines; i > kLines; --i) at = text.find('\n', at) + 1;
  return text.substr(at);
}

absl::StatusOr<LogLines> FromFile(const std::string& source, const std::string& path) {
  CKPTD_ASSIGN_OR_RETURN(std::string text, EndOf(path));
  return LogLines{source, std::move(text)};
}

absl::StatusOr<LogLines> FromJournal(const std::string& unit, bool of_user) {
  const std::vector<std::string> command = {"journalctl",
                                            absl::StrCat(of_user ? "--user-unit=" : "--unit=", unit),
                                            absl::StrCat("--lines=", kLines),
                                            "--output=short-iso-precise",
                                            "--no-pager",
                                            "--quiet"};
  const std::string source = absl::StrJoin(command, " ");
  absl::StatusOr<std::string> text = OutputOf(command);
  if (!text.ok()) return text.status();
  if (text->empty()) {
    return absl::NotFoundError(absl::StrCat(source,
                                            " shows nothing: run this as root, or as a member of the "
                                            "group systemd-journal"));
  }
  return LogLines{source, *std::move(text)};
}

// Reads what there is. Returns false at the end of the pipe, or when there is enough.
bool Take(int pipe, std::string* out) {
  char piece[65536];
  const ssize_t got = ::read(pipe, piece, sizeof piece);
  if (got < 0) return errno == EINTR || errno == EAGAIN;
  out->append(piece, static_cast<size_t>(got));
  return got > 0 && out->size() < kMostOutput;
}

// Starts the program with the pipe as its standard output and error.
absl::StatusOr<pid_t> Spawn(const std::vector<std::string>& command, int pipe) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, pipe, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, pipe, STDERR_FILENO);
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  pid_t pid = 0;
  const int error = ::posix_spawnp(&pid, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return ErrnoError(error, absl::StrCat("starting ", command[0]));
  return pid;
}

}  // namespace

absl::StatusOr<std::string> OutputOf(const std::vector<std::string>& command, int timeout_ms) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return ErrnoError(errno, "a pipe");
  const UniqueFd from(ends[0]);
  UniqueFd to(ends[1]);
  CKPTD_ASSIGN_OR_RETURN(const pid_t pid, Spawn(command, to.get()));
  to.reset();
  const Clock::time_point deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);
  std::string out;
  bool late = false;
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    late = left <= 0;
    if (late) break;
    pollfd wait{from.get(), POLLIN, 0};
    if (::poll(&wait, 1, static_cast<int>(left)) > 0 && !Take(from.get(), &out)) break;
  }
  // It may also be writing more than is taken.
  if (late || out.size() >= kMostOutput) ::kill(pid, SIGKILL);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (late) {
    return absl::DeadlineExceededError(
        absl::StrCat(command[0], " has not ended within ", timeout_ms / 1000.0, " s"));
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) != 0)
    return absl::UnknownError(absl::StrCat(command[0], " failed: ", OneLine(out)));
  return out;
}

absl::StatusOr<LogLines> ReadLogLines(const absl::StatusOr<DaemonProcess>& daemon,
                                      const std::string& socket_path) {
  if (!daemon.ok()) {
    const std::string beside = absl::StrCat(socket_path.substr(0, socket_path.rfind('/')), "/ckptd.log");
    if (absl::StatusOr<LogLines> found = FromFile(beside, beside); found.ok()) return found;
    return FromJournal("ckptd.service", /*of_user=*/false);
  }
  const std::string unit = UnitOf(daemon->pid);
  const absl::StatusOr<std::string> target = LinkOf(daemon->pid, "fd/2");
  // What is a file is found by the descriptor, also when it was renamed.
  const std::string descriptor = absl::StrCat("/proc/", daemon->pid, "/fd/2");
  struct stat found {};
  if (target.ok() && ::stat(descriptor.c_str(), &found) == 0 && S_ISREG(found.st_mode))
    return FromFile(*target, descriptor);
  const bool to_service_manager = target.ok() && absl::StartsWith(*target, "socket:");
  if (!unit.empty() && (to_service_manager || !target.ok())) {
    const absl::StatusOr<std::string> group = ReadSmallFile(absl::StrCat("/proc/", daemon->pid, "/cgroup"));
    return FromJournal(unit, group.ok() && absl::StrContains(*group, "/user.slice/"));
  }
  if (!target.ok()) return target.status();
  return absl::NotFoundError(absl::StrCat(
      "the daemon writes its log to ", *target,
      ", which cannot be read again; add the lines yourself, or the log of its container (kubectl logs)"));
}

}  // namespace ckptd::ctl
