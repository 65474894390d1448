// Starts threads, with a status instead of an exception.
#ifndef CKPTD_STORAGE_BASE_START_THREAD_H_
#define CKPTD_STORAGE_BASE_START_THREAD_H_

#include <pthread.h>

#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"

namespace ckptd {

// Starts a thread that runs `work`. The kernel keeps 15 bytes of `name`. RESOURCE_EXHAUSTED or the like, with
// advice, if the machine or the service's limit of tasks allows no more threads.
template <typename Work>
absl::StatusOr<std::thread> StartThread(const std::string& name, Work work) {
  try {
    std::thread thread(std::move(work));
    ::pthread_setname_np(thread.native_handle(), name.substr(0, 15).c_str());
    return thread;
  } catch (const std::system_error& error) {
    return Annotate(ErrnoError(error.code().value(), absl::StrCat("starting the thread ", name)),
                    "no thread can be started; raise TasksMax of the service, or kernel.threads-max");
  }
}

}  // namespace ckptd
#endif  // CKPTD_STORAGE_BASE_START_THREAD_H_
