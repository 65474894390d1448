// The real ckptd as a child process, with all its files in one short folder under /tmp.
#ifndef CKPTD_TESTS_INTEGRATION_DAEMON_PROCESS_H_
#define CKPTD_TESTS_INTEGRATION_DAEMON_PROCESS_H_

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace ckptd {

class DaemonProcess {
 public:
  // If the daemon does not start, become ready or end in time, the test fails with the daemon's log.
  // `more`: lines of the configuration.
  explicit DaemonProcess(int64_t pool_bytes = int64_t{64} << 20, int64_t segment_bytes = int64_t{2} << 20,
                         const std::string& more = "");
  ~DaemonProcess();  // Kills the daemon and removes the folder.

  void Start();  // Returns once the daemon serves.
  void Kill();   // SIGKILL; returns after the process has ended.
  void Stop();   // SIGTERM; returns after the process has ended.

  std::string endpoint() const { return "unix:" + folder_ + "/d.sock"; }
  // Creates an empty directory for checkpoints.
  std::string MakeRoot(const std::string& name = "root");
  std::string Log() const;

 private:
  int Wait();
  const int64_t pool_bytes_, segment_bytes_;
  std::string folder_;
  pid_t pid_ = -1;
};

// Runs a program with a deadline of 60 s. Returns its output and its exit status (-1: it was killed).
struct ProgramResult {
  int status = -1;
  std::string out;
  std::string err;
};
ProgramResult RunProgram(const std::vector<std::string>& arguments);

}  // namespace ckptd
#endif  // CKPTD_TESTS_INTEGRATION_DAEMON_PROCESS_H_
