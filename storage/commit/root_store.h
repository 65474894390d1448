// One root on disk: the commit protocol, recovery, and what retention does. The steps are numbered as in
// docs/design.md, "The commit, step by step".
//
//   <root>/<tag>/                         a committed checkpoint: its files, and our own beside them
//   <root>/<tag>/.ckptd/manifest          the commit record; .ckptd/part-NNNNN: one for every rank
//   <root>/<pointer>                      what a committed manifest names, see pointers.h
//   <root>/.ckptd/pins                    PinRecord
//   <root>/.ckptd/damaged                 DamageRecord
//   <root>/.ckptd/nodes/<node>/lock       flock for the daemon's life
//   <root>/.ckptd/nodes/<node>/run        RunRecord
//   <root>/.ckptd/nodes/<node>/inflight/  <tag>.<sequence>.<unique>/: checkpoints on their way
//   <root>/.ckptd/nodes/<node>/trash/     what is to be deleted
//   <root>/.ckptd/nodes/<node>/swap       SwapIntent, only during a re-save without rename-exchange
//
// After a rename whose sync failed (kIndeterminate, or an error of Discard or Evict that says so) every call
// that would change something is refused with FAILED_PRECONDITION, reason ROOT_READ_ONLY, until Rescan: what
// is on disk is not known before.
//
// Not thread-safe: the root's metadata worker calls everything. Knows no daemon and no gRPC.
#ifndef CKPTD_STORAGE_COMMIT_ROOT_STORE_H_
#define CKPTD_STORAGE_COMMIT_ROOT_STORE_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "storage/base/clock.h"
#include "storage/commit/foreign.h"
#include "storage/commit/scan.h"
#include "storage/commit/trash.h"
#include "storage/commit/types.h"
#include "storage/format/manifest.h"
#include "storage/fs/file_system.h"
#include "storage/io/probe.h"

namespace ckptd {

struct RootStoreOptions {
  std::string node = "local";
  IoBackend io_backend = IoBackend::kAuto;
  IoQueueMakers queues = {};  // Of the back ends that are probed.
};

class RootStore {
 public:
  // Takes the lock (FAILED_PRECONDITION, reason ROOT_LOCKED, when another daemon has it), probes, recovers
  // what an earlier daemon left, scans. `root` stays the caller's and must outlive the store. Fails rather
  // than start empty when something that it must know is unreadable (reason ROOT_UNREADABLE, naming the file
  // and the repair).
  static absl::StatusOr<std::unique_ptr<RootStore>> Open(FileSystem* fs, Handle root, Clock* clock,
                                                         RootStoreOptions options);
  ~RootStore();

  const ProbeResult& probe() const;  // Its free_bytes are those of the last scan.
  const std::vector<RecoveredSave>& recovered() const;
  // By sequence, oldest first. Directories that hold no valid manifest of ours are not here; one whose
  // manifest is damaged is in `damaged` and is left alone.
  const std::map<int64_t, CommittedCheckpoint>& committed() const;
  const std::vector<DamagedCheckpoint>& damaged() const;
  const storage::v1::RunRecord& run_record() const;
  const PointerFiles& pointers() const;  // As the last scan or commit left them.
  int64_t highest_sequence() const;      // Of anything that was found, in flight and trash included.

  // What a save of `tag` would meet. OK over nothing, an empty directory, or our own committed checkpoint;
  // ALREADY_EXISTS reason TAG_FOREIGN for anything else, FAILED_PRECONDITION reason PINNED for a pinned one.
  // And its pointers: reason POINTER_FOREIGN for one whose place is not a file's.
  absl::Status CheckTarget(const std::string& tag, const std::vector<std::string>& pointers = {});

  // Step 1, and the manifest's space of step 2 (`manifest_bytes` allocated).
  absl::StatusOr<Inflight> CreateInflight(const std::string& tag, int64_t sequence, int64_t manifest_bytes);
  // Directories above files, beneath the in-flight directory; existing ones are fine.
  absl::Status MakeParents(const Inflight& inflight, const std::vector<std::string>& paths);
  // Step 3. Every file of the part is on disk and synced.
  absl::Status WritePartRecord(const Inflight& inflight, const storage::v1::PartRecord& record);
  // Steps 4 to 6. The manifest is made of the parts.
  PublishResult Publish(const Inflight& inflight, const storage::v1::ManifestSummary& summary,
                        const std::vector<storage::v1::PartRecord>& parts);
  // A checkpoint of another program becomes ours: adopt.h. `summary`: SummaryOfForeign, with a sequence.
  // kCommitted, kFailed and kIndeterminate as of Publish; of the last the root is read-only.
  PublishResult Adopt(const ForeignSurvey& survey, const storage::v1::ManifestSummary& summary);
  // Finished checkpoints of other programs, as the last scan found them; oldest first.
  const std::vector<ForeignTag>& foreign() const;
  // Moves the in-flight directory to trash and syncs: after this (and only then) the save may be called
  // FAILED.
  absl::Status Discard(const Inflight& inflight);

  // Step 7, first half: renames a victim to trash and syncs. NOT_FOUND when (tag, sequence) is not committed,
  // FAILED_PRECONDITION reason PINNED or POINTED when it is pinned or a pointer names it.
  absl::Status Evict(const std::string& tag, int64_t sequence);
  // Step 7, second half: removes a file, or up to 1 GiB of small ones, from trash. Checkpoints of
  // `keep_sequences` (open readers) are left. False when there is nothing left to do.
  absl::StatusOr<bool> EmptyTrashStep(const std::vector<int64_t>& keep_sequences);
  // The same in three calls, as Trash has them: RemoveFromTrash runs on any thread, at most one at a time,
  // while the store goes on.
  absl::StatusOr<std::optional<std::string>> NextInTrash(const std::vector<int64_t>& keep_sequences);
  Trash::Removal RemoveFromTrash(const std::string& name) const;
  absl::Status RemovedFromTrash(const std::string& name, const Trash::Removal& removal);
  int64_t trash_bytes();

  absl::Status SaveRunRecord(const storage::v1::RunRecord& record);  // Durable on return.
  absl::Status SetPinned(const std::string& tag, int64_t sequence, bool pinned);
  // Remembers that a checkpoint is not what was saved (what was said of it first stays), or (nullopt) that it
  // has been repaired. Durable on return. The pointer files follow: they name the newest that is not damaged,
  // where there is one. NOT_FOUND when (tag, sequence) is not committed.
  absl::StatusOr<PointerFiles> SetDamage(const std::string& tag, int64_t sequence,
                                         const std::optional<storage::v1::Damage>& damage);
  // The whole manifest, with chunk tables. DATA_LOSS when damaged; NOT_FOUND when (tag, sequence) is not
  // there.
  absl::StatusOr<Manifest> ReadManifest(const std::string& tag, int64_t sequence);
  // An open directory of a committed checkpoint, verified to be that sequence; stays valid after eviction.
  absl::StatusOr<ScopedHandle> OpenCheckpoint(const std::string& tag, int64_t sequence);
  absl::StatusOr<int64_t> FreeBytes();
  // After kIndeterminate: scans and recovers anew; then committed() is the truth again. In-flight directories
  // of saves that are still under way (created here, neither published nor discarded) are left to them.
  absl::Status Rescan();

 private:
  RootStore();
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ckptd
#endif  // CKPTD_STORAGE_COMMIT_ROOT_STORE_H_
