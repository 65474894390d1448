// One root as its threads see it: the store, the in-flight directories and the open readers.
#ifndef CKPTD_DAEMON_ROOT_IO_THREADED_ROOT_H_
#define CKPTD_DAEMON_ROOT_IO_THREADED_ROOT_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/engine/root_io.h"
#include "daemon/root_io/disk_checkpoint_reader.h"
#include "daemon/root_io/file_system_workers.h"
#include "daemon/root_io/threaded_root_io.h"
#include "storage/base/clock.h"
#include "storage/commit/root_store.h"
#include "storage/fs/file_system.h"

namespace ckptd {

// FAILED_PRECONDITION, reason ROOT_UNREADABLE.
absl::Status RootNotOpen();

// State of one root behind its threads. Used on the metadata worker only, except for the atomics and
// `readers`; and once `open` is true, `fs` and `dir` no longer change, so other threads may use them.
struct ThreadedRoot {
  ThreadedRootIoFactory::OpenRootDirectory open_directory;
  std::atomic<bool> abandoned{false};  // Set when its RootIo is destroyed: long operations then stop.
  int32_t stop = 0;                    // 1 at the same time, for reads that take a pointer. Atomic.
  std::atomic<bool> open{false};
  std::shared_ptr<FileSystem> fs;
  ScopedHandle dir;
  std::map<InflightId64, Inflight> inflight;
  std::unique_ptr<RootStore> store;
  OpenManifests manifests;
  const std::shared_ptr<OpenReaders> readers = std::make_shared<OpenReaders>();

  // The in-flight directory of `id`. NOT_FOUND if there is none; FAILED_PRECONDITION, reason ROOT_UNREADABLE,
  // if the root is not open.
  absl::StatusOr<Inflight*> Find(InflightId64 id);
};

// Opens the directory and the store if they are not open, recovers what is in flight, and starts the I/O
// thread of `workers`. On the metadata worker.
absl::StatusOr<RootSnapshot> OpenRoot(ThreadedRoot& root, FileSystemWorkers& workers,
                                      const ThreadedRootIoOptions& options, Clock* clock);

// Describes an open root. Starts the I/O thread of `workers` if there is none. On the metadata worker.
absl::StatusOr<RootSnapshot> TakeSnapshot(ThreadedRoot& root, FileSystemWorkers& workers,
                                          const ThreadedRootIoOptions& options);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ROOT_IO_THREADED_ROOT_H_
