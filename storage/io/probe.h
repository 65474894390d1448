// Finds out what a root's file system can do, by doing it in a scratch directory beneath it and reading back
// what was written.
#ifndef CKPTD_STORAGE_IO_PROBE_H_
#define CKPTD_STORAGE_IO_PROBE_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/fs/file_system.h"
#include "storage/io/io_queue.h"

namespace ckptd {

enum class IoBackend { kAuto, kUring, kThreads };

// Where the back ends come from. A file system that is not the kernel's (in tests) brings its own.
struct IoQueueMakers {
  std::function<absl::StatusOr<std::unique_ptr<IoQueue>>(int depth)> uring = &MakeUringQueue;
  std::function<absl::StatusOr<std::unique_ptr<IoQueue>>(int threads)> threads = &MakeThreadQueue;
};

struct ProbeResult {
  std::string file_system;       // As SpaceInfo::type.
  std::string io_backend;        // "io_uring" or "threads".
  std::string io_backend_cause;  // Why, in words: "an aligned direct write through io_uring worked", ...
  bool direct_io = false;        // An aligned O_DIRECT write was read back equal.
  bool fallocate = false;
  bool rename_exchange = false;
  bool rename_noreplace = false;
  bool directory_sync = false;
  bool locks = false;
  int64_t free_bytes = 0;
  std::vector<std::string> warnings;
};

// Works in `scratch`, an empty directory, and leaves it empty. Blocks, and makes an I/O queue on the calling
// thread meanwhile. A full disk can be probed. Fails with FAILED_PRECONDITION, reason ROOT_UNSUITABLE, when
// something is missing for which there is no fallback (directory sync, locks); with UNAVAILABLE, reason
// IO_URING_UNAVAILABLE, when io_uring was demanded and does not work; else with the error that it met.
absl::StatusOr<ProbeResult> ProbeDirectory(FileSystem& fs, Handle scratch, IoBackend wanted,
                                           const IoQueueMakers& queues = {});

}  // namespace ckptd
#endif  // CKPTD_STORAGE_IO_PROBE_H_
