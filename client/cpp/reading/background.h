// Runs a reader's work at idle priority, so that it does not slow down processes that train beside it.
#ifndef CKPTD_CLIENT_CPP_READING_BACKGROUND_H_
#define CKPTD_CLIENT_CPP_READING_BACKGROUND_H_

#include <system_error>
#include <thread>

#include "storage/base/idle_priority.h"

namespace ckptd::client {

// Runs work() and returns when it is done. With `background`, a thread at idle priority runs it; threads that
// work() starts inherit the priority. If no thread can be made, the calling thread runs it at its own
// priority. The caller must hold no lock that other threads need: at idle priority the work may take very
// long.
template <typename Work>
void RunInBackgroundIf(bool background, const Work& work) {
  if (!background) return work();
  std::thread thread;
  try {
    thread = std::thread([&work] {
      SetIdlePriority();
      work();
    });
  } catch (const std::system_error&) {
    return work();
  }
  thread.join();
}

}  // namespace ckptd::client
#endif  // CKPTD_CLIENT_CPP_READING_BACKGROUND_H_
