#include "daemon/root_io/local/threaded_root.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/io/probe.h"

namespace ckptd {
namespace {

RootSnapshot SnapshotOf(RootStore& store, const ProbeResult& probe) {
  RootSnapshot snapshot;
  snapshot.probe = probe;
  snapshot.recovered = store.recovered();
  snapshot.committed = store.committed();
  snapshot.damaged = store.damaged();
  snapshot.pointers = store.pointers();
  snapshot.run_record = store.run_record();
  snapshot.highest_sequence = store.highest_sequence();
  snapshot.trash_bytes = store.trash_bytes();
  snapshot.foreign = store.foreign();
  return snapshot;
}

}  // namespace

absl::StatusOr<Inflight*> ThreadedRoot::Find(InflightId64 id) {
  auto found = inflight.find(id);
  if (store == nullptr) return RootNotOpen();
  if (found == inflight.end())
    return absl::NotFoundError(absl::StrCat("no in-flight directory has the number ", id));
  return &found->second;
}

absl::StatusOr<RootSnapshot> TakeSnapshot(ThreadedRoot& root, FileSystemWorkers& workers,
                                          const ThreadedRootIoOptions& options) {
  ProbeResult probe = root.store->probe();
  CKPTD_RETURN_IF_ERROR(workers.StartIo(options.backend, probe));
  return SnapshotOf(*root.store, probe);
}

absl::StatusOr<RootSnapshot> OpenRoot(ThreadedRoot& root, FileSystemWorkers& workers,
                                      const ThreadedRootIoOptions& options, Clock* clock) {
  if (root.store == nullptr) {
    CKPTD_RETURN_IF_ERROR(root.OpenDirectory());
    const RootStoreOptions store_options = {
        .node = options.node, .io_backend = options.backend, .queues = options.queues};
    CKPTD_ASSIGN_OR_RETURN(root.store, RootStore::Open(root.fs.get(), root.dir.get(), clock, store_options));
  }
  absl::StatusOr<RootSnapshot> snapshot = TakeSnapshot(root, workers, options);
  if (!snapshot.ok()) root.store.reset();
  root.open.store(root.store != nullptr);
  return snapshot;
}

}  // namespace ckptd
