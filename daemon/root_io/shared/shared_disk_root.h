// One root that several nodes share, as the threads of its file system on this node see it.
#ifndef CKPTD_DAEMON_ROOT_IO_SHARED_SHARED_DISK_ROOT_H_
#define CKPTD_DAEMON_ROOT_IO_SHARED_SHARED_DISK_ROOT_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "daemon/engine/seams/root_io.h"
#include "daemon/engine/seams/shared_files_io.h"
#include "daemon/root_io/common/opened_root.h"
#include "daemon/root_io/shared/shared_root_identity.h"
#include "daemon/root_io/threads/file_system_workers.h"
#include "daemon/root_io/threads/root_threads.h"
#include "storage/base/clock.h"
#include "storage/commit/shared/shared_root_store.h"
#include "storage/commit/steps/types.h"

namespace ckptd {

// Used on the metadata worker only. If a call fails with LOOK_AGAIN, repeat it a little later, for a bounded
// time.
struct SharedDiskRoot : OpenedRoot {
  SharedRootIdentity identity;
  std::unique_ptr<SharedRootStore> store;
  std::map<InflightId64, NodePart> parts;  // The parts that this node writes.
  // The checkpoints as last seen; for the pointer files, which the coordinator alone writes.
  std::map<int64_t, CommittedCheckpoint> committed;
  // The damage marks in etcd, by sequence; unset: the checkpoint was repaired, or has been removed. The
  // coordinator also writes them into the record of the run, for a run that moves to another etcd.
  std::map<int64_t, std::optional<storage::v1::Damage>> damage;
  // Likewise the pins of operators; false: unpinned.
  struct DecidedPin {
    std::string tag;
    bool pinned = false;
  };
  std::map<int64_t, DecidedPin> pins;
  std::set<std::string> known_tags;  // Shown by the last scan, or published since.
  bool coordinates = false;          // A term has begun.
  bool scanned_in_term = false;
  PointerFiles known_pointers = {.known = false};  // As of the last scan in this term.

  // FAILED_PRECONDITION, reason ROOT_UNREADABLE, if the root is not open.
  absl::Status CheckOpen() const;
  absl::StatusOr<NodePart*> FindPart(InflightId64 id);

  // Opens the directory and the store if they are not open, and starts the I/O thread of `workers`.
  absl::StatusOr<RootSnapshot> Open(FileSystemWorkers& workers, const ThreadedRootIoOptions& options,
                                    Clock* clock);
  absl::StatusOr<RootSnapshot> Scan();

  // The record of this node's part, from those of its ranks.
  storage::v1::NodePartRecord RecordOf(const std::vector<storage::v1::PartRecord>& ranks) const;
  absl::StatusOr<LoadedCheckpoint> Load(const std::string& tag, int64_t sequence);
  absl::StatusOr<PointerFiles> SetDamage(int64_t sequence, const std::optional<storage::v1::Damage>& mark);
  absl::Status SetPinned(const std::string& tag, int64_t sequence, bool pinned);
  // Updates the pointer files from `checkpoints` if this node coordinates. Else answers that they are not
  // known: this node does not know what the coordinator has written.
  absl::StatusOr<PointerFiles> UpdatePointers(const std::map<int64_t, CommittedCheckpoint>& checkpoints);

  // NO_CHECKPOINT if it is not there.
  absl::StatusOr<PointerFiles> ReleasePointers(int64_t sequence);
  // Call it when a checkpoint is gone.
  void Forget(int64_t sequence);

  absl::Status BeginTerm(int64_t term);
  void EndTerm();
  absl::StatusOr<uint64_t> CheckRemovable(const std::string& tag, int64_t sequence);
  absl::StatusOr<SharedRootIo::Replaced> FindReplaced(const SharedRootIo::Publication& publication);
  absl::StatusOr<SharedRootIo::Published> Publish(const SharedRootIo::Publication& publication);
  // Moves the directories of saves that have ended to the trash. Returns the names in the trash that may be
  // removed.
  absl::StatusOr<std::vector<std::string>> Sweep(int64_t last, const std::set<int64_t>& unfinished);

 private:
  // Sets the checkpoint's damage to the mark of the nodes, if there is one; else the run's record counts.
  void Mark(CommittedCheckpoint& checkpoint) const;
  // Called by the coordinator, if the record may be old: writes `damage` and `pins` into it.
  absl::Status RecordMarks();
  // The record matters only if etcd is lost, so a failure is a warning, and the write is tried again.
  void RecordMarksIfPossible(PointerFiles* pointers);

  bool record_is_old_ = false;
  ProbeResult probe_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ROOT_IO_SHARED_SHARED_DISK_ROOT_H_
