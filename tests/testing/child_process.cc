#include "tests/testing/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gtest/gtest.h"
#include "storage/base/unique_fd.h"

namespace ckptd {
namespace {

constexpr int kDeadlineMs = 60'000;

}  // namespace

pid_t StartProgram(const std::vector<std::string>& arguments, int out, int err, int keep) {
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const pid_t child = fork();
  if (child != 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  if (keep >= 0) fcntl(keep, F_SETFD, 0);
  execv(argv[0], argv.data());
  _exit(127);
}

int WaitForEnd(pid_t pid) {
  UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  pollfd ended = {pidfd.get(), POLLIN, 0};
  const bool in_time = poll(&ended, 1, kDeadlineMs) == 1;
  EXPECT_TRUE(in_time) << "process " << pid << " did not end in time";
  if (!in_time) kill(pid, SIGKILL);
  int status = 0;
  waitpid(pid, &status, 0);
  return in_time && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace ckptd
