// One root as the threads of its file system see it, whether one node or several write in it.
#ifndef CKPTD_DAEMON_ROOT_IO_COMMON_OPENED_ROOT_H_
#define CKPTD_DAEMON_ROOT_IO_COMMON_OPENED_ROOT_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/root_io/common/disk_checkpoint_reader.h"
#include "storage/fs/file_system.h"

namespace ckptd {

// FAILED_PRECONDITION, reason ROOT_UNREADABLE.
absl::Status RootNotOpen();

struct RootDirectory {
  std::shared_ptr<FileSystem> fs;
  ScopedHandle handle;
};
using RootOpener = absl::AnyInvocable<absl::StatusOr<RootDirectory>()>;

// Used on the metadata worker only, except for the atomics and `readers`; and once `open` is true, `fs` and
// `dir` no longer change, so other threads may use them.
struct OpenedRoot {
  RootOpener open_directory;
  std::atomic<bool> abandoned{false};  // Set when its RootIo is destroyed: long operations then stop.
  int32_t stop = 0;                    // 1 at the same time, for reads that take a pointer. Atomic.
  std::atomic<bool> open{false};
  std::shared_ptr<FileSystem> fs;
  ScopedHandle dir;
  OpenManifests manifests;
  const std::shared_ptr<OpenReaders> readers = std::make_shared<OpenReaders>();

  // Opens the directory, anew if it was open.
  absl::Status OpenDirectory();
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ROOT_IO_COMMON_OPENED_ROOT_H_
