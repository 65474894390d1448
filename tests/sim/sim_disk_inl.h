// Templates and helpers for the sources that implement sim_disk.h.
#ifndef CKPTD_TESTS_SIM_SIM_DISK_INL_H_
#define CKPTD_TESTS_SIM_SIM_DISK_INL_H_

#include <cerrno>
#include <cstdint>
#include <utility>

#include "storage/base/errors.h"
#include "tests/sim/sim_disk.h"

namespace ckptd::sim {

inline absl::Status Eio(const char* what) { return ErrnoError(EIO, what); }

inline constexpr int64_t kForeignSize = 4096;  // Disk space of one foreign checkpoint.
inline constexpr int64_t kForeignFile = 100;

template <typename T, typename Work>
void SimRootIo::Ask(Worker& worker, Duration latency, Callback<T> done, Work work) {
  worker.waiting.emplace_back(
      latency, [done = std::move(done), work = std::move(work)]() mutable -> absl::AnyInvocable<void()> {
        return [done = std::move(done), result = work()]() mutable { done(std::move(result)); };
      });
  if (worker.running == nullptr) RunNext(worker);
}

}  // namespace ckptd::sim
#endif  // CKPTD_TESTS_SIM_SIM_DISK_INL_H_
