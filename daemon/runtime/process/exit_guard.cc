#include "daemon/runtime/process/exit_guard.h"

#include <unistd.h>

#include <utility>

#include "daemon/log/log.h"

namespace ckptd {

ExitGuard::ExitGuard(Duration timeout, std::string message) {
  thread_ = std::thread([this, deadline = SystemClock().Now() + timeout, text = std::move(message)] {
    MutexLock lock(mutex_);
    while (!over_) {
      const Duration left = deadline - SystemClock().Now();
      if (left <= Duration::zero()) {
        Log(LogLevel::kError, text);
        ::_exit(1);
      }
      changed_.WaitFor(mutex_, left);
    }
  });
}

ExitGuard::~ExitGuard() {
  {
    MutexLock lock(mutex_);
    over_ = true;
  }
  changed_.Signal();
  thread_.join();
}

}  // namespace ckptd
