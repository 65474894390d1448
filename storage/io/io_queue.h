// Seam: many reads and writes of file data at once. Implementations: io_uring, a thread pool; for tests
// tests/testing/faulty_io_queue.h.
//
// One thread owns a queue: it makes it, submits to it and polls it. Only Wake() may be called from other
// threads. Buffers must stay valid, and for writes unchanged, until the completion has run. A completion's
// result is what the kernel returned: the number of bytes, or -errno. It may be less than requested; the
// caller compares and continues.
#ifndef CKPTD_STORAGE_IO_IO_QUEUE_H_
#define CKPTD_STORAGE_IO_IO_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "storage/base/clock.h"
#include "storage/fs/file_system.h"

namespace ckptd {

using IoDone = absl::AnyInvocable<void(int64_t result)>;

class IoQueue {
 public:
  virtual ~IoQueue() = default;  // Waits for what is in flight, without running its completions.

  // "io_uring" or "threads".
  virtual std::string_view name() const = 0;

  virtual void Write(Handle file, std::span<const std::byte> from, int64_t offset, IoDone done) = 0;
  virtual void Read(Handle file, std::span<std::byte> into, int64_t offset, IoDone done) = 0;
  virtual void SyncData(Handle file, IoDone done) = 0;  // fdatasync. The result is 0 or -errno.

  // Submits what is queued; waits for at least one completion, a Wake() or the timeout; and runs the
  // completions that have arrived. Completions may submit more.
  virtual void Poll(Duration timeout) = 0;
  // Ends the Poll that waits, or the next one. Thread-safe.
  virtual void Wake() = 0;
  // The number of operations that were submitted and have not completed.
  virtual int in_flight() const = 0;
};

// Makes a queue on the thread that will own it.
using IoQueueFactory = std::function<absl::StatusOr<std::unique_ptr<IoQueue>>()>;

// UNAVAILABLE, reason IO_URING_UNAVAILABLE, with the cause in words (seccomp, sysctl
// kernel.io_uring_disabled, ...).
absl::StatusOr<std::unique_ptr<IoQueue>> MakeUringQueue(int depth);
absl::StatusOr<std::unique_ptr<IoQueue>> MakeThreadQueue(int threads);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_IO_IO_QUEUE_H_
