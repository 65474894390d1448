// One root as its threads see it: the store, the in-flight directories and the open readers.
#ifndef CKPTD_DAEMON_ROOT_IO_LOCAL_THREADED_ROOT_H_
#define CKPTD_DAEMON_ROOT_IO_LOCAL_THREADED_ROOT_H_

#include <map>
#include <memory>

#include "absl/status/statusor.h"
#include "daemon/engine/seams/root_io.h"
#include "daemon/root_io/common/opened_root.h"
#include "daemon/root_io/threads/file_system_workers.h"
#include "daemon/root_io/threads/root_threads.h"
#include "storage/base/clock.h"
#include "storage/commit/local/root_store.h"

namespace ckptd {

// State of a root that this node has for itself, behind its threads. Used on the metadata worker only.
struct ThreadedRoot : OpenedRoot {
  std::map<InflightId64, Inflight> inflight;
  std::unique_ptr<RootStore> store;

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
#endif  // CKPTD_DAEMON_ROOT_IO_LOCAL_THREADED_ROOT_H_
