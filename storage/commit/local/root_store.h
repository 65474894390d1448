// One root on disk: the commit protocol, recovery and retention. Steps are numbered as in docs/design.md,
// "The commit, step by step".
//
//   <root>/<tag>/                         a committed checkpoint: its files, and ckptd's own beside them
//   <root>/<tag>/.ckptd/manifest          the commit record; .ckptd/part-NNNNN: one for each rank
//   <root>/<pointer>                      a pointer file that a committed manifest names, see pointers.h
//   <root>/.ckptd/pins                    PinRecord
//   <root>/.ckptd/damaged                 DamageRecord
//   <root>/.ckptd/nodes/<node>/lock       locked (flock) while a daemon has the root open
//   <root>/.ckptd/nodes/<node>/run        RunRecord
//   <root>/.ckptd/nodes/<node>/inflight/  <tag>.<sequence>.<unique>/: checkpoints in flight
//   <root>/.ckptd/nodes/<node>/trash/     directories to be deleted
//   <root>/.ckptd/nodes/<node>/swap       SwapIntent, only during a re-save without rename-exchange
//
// After a rename whose sync failed (kIndeterminate, or an error of Discard, Evict or Undelete that says so)
// what is on disk is unknown. Until Rescan, every call that would change something fails with
// FAILED_PRECONDITION, reason ROOT_READ_ONLY.
//
// Not thread-safe: the root's metadata worker makes all calls. Uses no daemon code and no gRPC.
#ifndef CKPTD_STORAGE_COMMIT_LOCAL_ROOT_STORE_H_
#define CKPTD_STORAGE_COMMIT_LOCAL_ROOT_STORE_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "storage/base/clock.h"
#include "storage/base/mutex.h"
#include "storage/commit/checkpoint/foreign.h"
#include "storage/commit/checkpoint/scan.h"
#include "storage/commit/local/trash.h"
#include "storage/commit/steps/types.h"
#include "storage/format/manifest.h"
#include "storage/fs/file_system.h"
#include "storage/io/probe.h"

namespace ckptd {

struct RootStoreOptions {
  std::string node = "local";
  IoBackend io_backend = IoBackend::kAuto;
  IoQueueMakers queues = {};  // The back ends to probe.
};

// Every call that changes something first checks that <root>/.ckptd is still there, and makes it again if not
// (RestoreDirectory).
class RootStore {
 public:
  // Takes the lock (FAILED_PRECONDITION, reason ROOT_LOCKED, if another daemon has it), probes the file
  // system, recovers what an earlier daemon left in flight, and scans. `root` must outlive the store. If
  // something necessary cannot be read it fails (reason ROOT_UNREADABLE, with the file and the repair) rather
  // than start empty. FAILED_PRECONDITION, reason ROOT_SHARING_CHANGED, if several nodes share the root.
  static absl::StatusOr<std::unique_ptr<RootStore>> Open(FileSystem* fs, Handle root, Clock* clock,
                                                         RootStoreOptions options);
  ~RootStore();

  const ProbeResult& probe() const;  // Its free_bytes and total_bytes are as of the last scan.
  const std::vector<RecoveredSave>& recovered() const;
  // By sequence, oldest first. Directories without a valid manifest are not included. Those whose manifest is
  // damaged are in damaged(), and stay where they are.
  const std::map<int64_t, CommittedCheckpoint>& committed() const;
  const std::vector<DamagedCheckpoint>& damaged() const;
  const storage::v1::RunRecord& run_record() const;
  const PointerFiles& pointers() const;  // As of the last scan or commit.
  int64_t highest_sequence() const;      // Of everything found, including in flight and trash.

  // Checks that a save may take `tag`: it is free, an empty directory, or ckptd's own committed checkpoint.
  // ALREADY_EXISTS, reason TAG_FOREIGN, for anything else; FAILED_PRECONDITION, reason PINNED, for a pinned
  // one; ALREADY_EXISTS, reason POINTER_FOREIGN, if a pointer file cannot be written at its name.
  absl::Status CheckTarget(const std::string& tag, const std::vector<std::string>& pointers = {});

  // Step 1, and of step 2 the allocation of `manifest_bytes` for the manifest.
  absl::StatusOr<Inflight> CreateInflight(const std::string& tag, int64_t sequence, int64_t manifest_bytes);
  // Makes the parent directories of files in the in-flight directory. Existing ones are fine.
  absl::Status MakeParents(const Inflight& inflight, const std::vector<std::string>& paths);
  // Step 3. Precondition: every file of the part is written and synced.
  absl::Status WritePartRecord(const Inflight& inflight, const storage::v1::PartRecord& record);
  // Steps 4 to 6. The manifest is made from the parts.
  PublishResult Publish(const Inflight& inflight, const storage::v1::ManifestSummary& summary,
                        const std::vector<storage::v1::PartRecord>& parts);
  // Adopts a checkpoint of another program; see adopt.h. `summary` is SummaryOfForeign with a sequence. The
  // outcomes are those of Publish; after kIndeterminate the root is read-only.
  PublishResult Adopt(const ForeignSurvey& survey, const storage::v1::ManifestSummary& summary);
  // The finished checkpoints of other programs, as of the last scan, oldest first.
  const std::vector<ForeignTag>& foreign() const;
  // Moves the in-flight directory to trash and syncs. Only after this may the save be reported FAILED;
  // otherwise recovery could publish it.
  absl::Status Discard(const Inflight& inflight);

  // Step 7, first half: renames a checkpoint to trash and syncs. NOT_FOUND if (tag, sequence) is not
  // committed. FAILED_PRECONDITION, reason PINNED or POINTED, if it is pinned or a pointer names it.
  absl::Status Evict(const std::string& tag, int64_t sequence);
  // Step 7, second half: removes one file, or up to 1 GiB of small ones, from trash. Leaves the checkpoints
  // of `keep_sequences`, which have open readers, and what `terms` leave. False if nothing is left to do.
  absl::StatusOr<bool> EmptyTrashStep(const std::vector<int64_t>& keep_sequences,
                                      const TrashTerms& terms = {});
  // The same in three calls, as in Trash. RemoveFromTrash may run on any thread, one at a time, while other
  // calls are made.
  absl::StatusOr<std::optional<std::string>> NextInTrash(const std::vector<int64_t>& keep_sequences,
                                                         const TrashTerms& terms = {});
  Trash::Removal RemoveFromTrash(const std::string& name) const;
  absl::Status RemovedFromTrash(const std::string& name, const Trash::Removal& removal);
  int64_t trash_bytes();
  TrashLeft LeftInTrash(const TrashTerms& terms);
  // The whole checkpoints in trash that no step has begun to remove.
  std::vector<TrashedCheckpoint> ListTrash();
  // Brings one of them back to its tag, and pins it; see undelete.h. `sequence` 0: the one of the tag with
  // the highest sequence. NOT_FOUND, reason NO_CHECKPOINT, if there is none.
  absl::StatusOr<Undeleted> Undelete(const std::string& tag, int64_t sequence);

  absl::Status SaveRunRecord(const storage::v1::RunRecord& record);  // Durable on return.
  absl::Status SetPinned(const std::string& tag, int64_t sequence, bool pinned);
  // Marks a checkpoint as damaged (an earlier mark stays), or with nullopt as repaired. Durable on return.
  // Then updates the pointer files, which name the newest undamaged checkpoint if there is one. NOT_FOUND if
  // (tag, sequence) is not committed.
  absl::StatusOr<PointerFiles> SetDamage(const std::string& tag, int64_t sequence,
                                         const std::optional<storage::v1::Damage>& damage);
  // Makes the pointers that a checkpoint decides name the newest other one that names them. A pointer that no
  // other names is removed. Durable on return; then Evict removes the checkpoint. If that does not happen,
  // the next update of the pointers undoes it. NOT_FOUND if (tag, sequence) is not committed.
  absl::StatusOr<PointerFiles> ReleasePointers(const std::string& tag, int64_t sequence);
  // The whole manifest, with chunk tables. DATA_LOSS if it is damaged; NOT_FOUND if (tag, sequence) does not
  // exist.
  absl::StatusOr<Manifest> ReadManifest(const std::string& tag, int64_t sequence);
  // Opens the directory of a committed checkpoint and checks that it has that sequence. Stays valid after
  // eviction.
  absl::StatusOr<ScopedHandle> OpenCheckpoint(const std::string& tag, int64_t sequence);
  absl::StatusOr<int64_t> FreeBytes();
  // Scans and recovers again after kIndeterminate; afterwards committed() is the truth again. Leaves alone
  // the in-flight directories of saves that are still under way (created here, neither published nor
  // discarded).
  absl::Status Rescan();

 private:
  RootStore();
  class Impl;
  std::shared_ptr<Impl> impl() const {
    MutexLock lock(mutex_);
    return impl_;
  }
  // Starts it, and uses it from now on.
  absl::Status Use(std::shared_ptr<Impl> impl);
  // If somebody has removed or replaced <root>/.ckptd: makes it again, with the records that the store had,
  // as a daemon that starts would open it. The checkpoints in the root do not depend on it; saves that were
  // in flight are lost (ABORTED, reason ROOT_CHANGED). FAILED_PRECONDITION, reason ROOT_CHANGED, if the root
  // itself was removed.
  absl::Status RestoreDirectory();

  mutable Mutex mutex_;
  // Replaced by RestoreDirectory. RemoveFromTrash, on another thread, may still use the one before.
  std::shared_ptr<Impl> impl_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ckptd
#endif  // CKPTD_STORAGE_COMMIT_LOCAL_ROOT_STORE_H_
