// Work of a reader that is not to be in the way of those who train beside it.
#ifndef CKPTD_CLIENT_CPP_BACKGROUND_H_
#define CKPTD_CLIENT_CPP_BACKGROUND_H_

#include <system_error>
#include <thread>

#include "storage/base/idle_priority.h"

namespace ckptd::client {

// Runs work(): in the background by a thread that gives way, and those that it starts, for which this one
// waits. Where none can be made, here. Only for what holds no lock that others need.
template <typename Work>
void RunGently(bool background, const Work& work) {
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
#endif  // CKPTD_CLIENT_CPP_BACKGROUND_H_
