// Finds out what a root's file system supports, by trying it in a scratch directory and reading back what was
// written.
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

// How queues are made. Tests replace them.
struct IoQueueMakers {
  std::function<absl::StatusOr<std::unique_ptr<IoQueue>>(int depth)> uring = &MakeUringQueue;
  std::function<absl::StatusOr<std::unique_ptr<IoQueue>>(int threads)> threads = &MakeThreadQueue;
};

struct ProbeResult {
  std::string file_system;       // SpaceInfo::type.
  std::string io_backend;        // "io_uring" or "threads".
  std::string io_backend_cause;  // Why it was chosen: "an aligned direct write through io_uring worked", ...
  bool direct_io = false;        // An aligned O_DIRECT write was read back equal.
  bool fallocate = false;
  bool rename_exchange = false;
  bool rename_noreplace = false;
  bool directory_sync = false;
  bool locks = false;
  int64_t free_bytes = 0;
  int64_t total_bytes = 0;  // Of the whole file system; 0 if it does not say.
  std::vector<std::string> warnings;
};

// Works in `scratch`, an empty directory, and leaves it empty. Blocks, and makes an I/O queue on the calling
// thread. Works on a full disk, too.
//   FAILED_PRECONDITION  ROOT_UNSUITABLE: something without a fallback is missing (directory sync, locks)
//   UNAVAILABLE          IO_URING_UNAVAILABLE: io_uring was demanded and does not work
//   others               the error of a file operation
absl::StatusOr<ProbeResult> ProbeDirectory(FileSystem& fs, Handle scratch, IoBackend wanted,
                                           const IoQueueMakers& queues = {});

}  // namespace ckptd
#endif  // CKPTD_STORAGE_IO_PROBE_H_
