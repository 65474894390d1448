// Ends the process when a shutdown takes too long.
#ifndef CKPTD_DAEMON_RUNTIME_PROCESS_EXIT_GUARD_H_
#define CKPTD_DAEMON_RUNTIME_PROCESS_EXIT_GUARD_H_

#include <string>
#include <thread>

#include "storage/base/clock.h"
#include "storage/base/mutex.h"

namespace ckptd {

class ExitGuard {
 public:
  // If this object still lives after `timeout`, logs `message` as an error and ends the process with exit
  // code 1, without running destructors: a thread that hangs in the kernel can be neither joined nor ended.
  ExitGuard(Duration timeout, std::string message);
  ~ExitGuard();
  ExitGuard(const ExitGuard&) = delete;
  ExitGuard& operator=(const ExitGuard&) = delete;

 private:
  Mutex mutex_;
  CondVar changed_;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_RUNTIME_PROCESS_EXIT_GUARD_H_
