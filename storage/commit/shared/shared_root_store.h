// A root that several nodes share, on disk: what each node writes and reads there, and what the run's
// coordinator does. The counterpart of RootStore (root_store.h), which has a root for itself.
//
//   <root>/<tag>/                              a checkpoint: its files, and ckptd's own beside them
//   <root>/<tag>/.ckptd/manifest               made by the coordinator
//   <root>/<tag>/.ckptd/node.<node>.<digest>   NodePartRecord of each node
//   <root>/<tag>/.ckptd.removed.<sequence>     what `.ckptd` is called while the checkpoint is being removed
//   <root>/.ckptd/shared/inflight/             <tag>.<sequence>.<unique>/: saves in flight
//   <root>/.ckptd/shared/trash/                saves that were given up
//   <root>/.ckptd/shared/run/<id>/             the id of the run
//   <root>/.ckptd/shared/record.<term>         SharedRunRecord of the coordinator of that term
//   <root>/.ckptd/shared/term.<term>/          where that coordinator makes pointer files, and fetches into
//   <root>/.ckptd/shared/scratch.<node>/       only during the node's probe of the file system
//
// If <root>/.ckptd is removed, the next call of any node makes it again, with the id of the run; the
// coordinator's, also with its term and its record. What was in flight is lost (SharedPlace::kLost,
// ROOT_CHANGED).
//
// It takes no lock and recovers nothing: the ledger decides what each daemon may do, and the coordinator
// continues what another one has left. So opening it changes nothing of a run. A daemon may be paused before
// any call, for any time, and make it then: no call harms what others have done meanwhile. Its answer may be
// out of date, and counts only when the ledger accepts what the daemon makes of it.
//
// LOOK_AGAIN (look_again.h) of any call: ask again a little later, for a bounded time
// (SharedRootStoreOptions::staleness, and some more for a slow file system), while the ledger still says what it said.
//
// Not thread-safe: the root's metadata worker makes all calls. Uses no daemon code and no gRPC.
#ifndef CKPTD_STORAGE_COMMIT_SHARED_SHARED_ROOT_STORE_H_
#define CKPTD_STORAGE_COMMIT_SHARED_SHARED_ROOT_STORE_H_

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
#include "storage/base/clock.h"
#include "storage/commit/shared/run/shared_layout.h"
#include "storage/commit/shared/run/shared_record.h"
#include "storage/commit/shared/save/shared_inflight.h"
#include "storage/commit/shared/save/shared_manifest.h"
#include "storage/commit/shared/save/shared_part.h"
#include "storage/commit/shared/save/shared_publish.h"
#include "storage/commit/shared/save/shared_removal.h"
#include "storage/commit/shared/shared_scan.h"
#include "storage/commit/steps/pointers.h"
#include "storage/commit/steps/types.h"
#include "storage/format/manifest.h"
#include "storage/fs/file_system.h"
#include "storage/io/probe.h"

namespace ckptd {

struct SharedRootStoreOptions {
  std::string node;  // As the ledger knows it.
  IoBackend io_backend = IoBackend::kAuto;
  IoQueueMakers queues = {};  // The back ends to probe.
  Duration staleness = kStaleness;
};

class SharedRootStore {
 public:
  // Makes ckptd's directories, and probes the file system. FAILED_PRECONDITION if one node has used the root
  // alone (root_sharing.h). `fs`, `root` and `clock` must outlive the store.
  static absl::StatusOr<std::unique_ptr<SharedRootStore>> Open(FileSystem* fs, Handle root, Clock* clock,
                                                               SharedRootStoreOptions options);

  // ---- Each node

  const ProbeResult& probe() const { return probe_; }
  absl::StatusOr<int64_t> FreeBytes();
  // The id of the root's run; see shared_run_id.h.
  absl::StatusOr<std::string> RunId();
  // The record of the run, and then what is in the root, with the record's pins and marks. See
  // SharedRecords::Load and SharedScanner::Look.
  absl::StatusOr<storage::v1::SharedRunRecord> LoadRecord(RecordVersion at_least);
  absl::StatusOr<SharedRootScan> Scan();
  // One of these checkpoints, without a look at the others, and with the record's pins and marks. LOOK_AGAIN
  // if it is not at its tag: this node does not see it yet, or it has been removed or replaced.
  absl::StatusOr<CommittedCheckpoint> FindCheckpoint(const std::string& tag, int64_t sequence);
  // Whether a save may take the tag and the pointers, as RootStore::CheckTarget: for an early answer, which
  // another program may overtake.
  absl::Status CheckTarget(const std::string& tag, const std::vector<std::string>& pointers = {});

  // The ledger has pinned this checkpoint, or unpinned it: that counts from now on, whatever the record says.
  void SetPinned(int64_t sequence, bool pinned) { decided_pins_[sequence] = pinned; }

  // This node's part; see shared_part.h. Its files are written by PartWriter, with NodePart::target().
  absl::StatusOr<NodePart> BeginPart(const SharedInflight& save, EarlierDaemon earlier);
  absl::Status MakeRoomFor(const NodePart& part, const std::vector<std::string>& paths);
  // Durable on return. The digest is for the ledger.
  absl::StatusOr<std::string> FinishPart(const NodePart& part, const storage::v1::NodePartRecord& record);

  // A checkpoint, open for reading: its files are opened beneath `dir`, whose manifest this is.
  struct OpenedCheckpoint {
    ScopedHandle dir;
    Manifest manifest;
  };
  // After the ledger has let this node read it, so that it is not removed. NOT_FOUND, reason
  // NO_CHECKPOINT, if it is not there (any more). DATA_LOSS if the manifest is damaged, or a file is missing
  // or has another size: that is damage only if the ledger still says so afterwards.
  absl::StatusOr<OpenedCheckpoint> OpenCheckpoint(const std::string& tag, int64_t sequence);

  // ---- The coordinator

  // First in each term, and then asks the ledger whether it has the leadership still; see shared_term.h.
  absl::Status BeginTerm(int64_t term);
  absl::StatusOr<SharedInflight> MakeInflight(const std::string& tag, int64_t sequence);
  absl::StatusOr<SharedPlace> Find(const SharedInflight& save);
  // The sequence of ckptd's checkpoint at the tag, also of one that is removed in part. 0: there is none.
  absl::StatusOr<int64_t> SequenceAt(const std::string& tag);
  // Reads the records of all nodes, and makes the manifest of them; see shared_manifest.h. Changes nothing.
  absl::StatusOr<Manifest> MakeManifest(const SharedInflight& save, const LedgerFacts& facts,
                                        const std::map<std::string, std::string>& digests);
  // Makes the manifest, and publishes; see shared_publish.h. 0 also if another coordinator has published it.
  // After BeginTerm, like all that follows but for removals.
  absl::StatusOr<int64_t> Publish(const SharedInflight& save, const LedgerFacts& facts,
                                  const std::map<std::string, std::string>& digests);
  // Which checkpoint the save replaces, and which pointers it takes over from it: for LedgerFacts, before the
  // ledger fixes them. An error of CheckMayReplace (commit_rules.h), or of MakeManifest: it replaces none.
  struct Replaced {
    int64_t sequence = 0;  // 0: none.
    std::map<std::string, std::string> pointers;
  };
  absl::StatusOr<Replaced> FindReplaced(const SharedInflight& save, const LedgerFacts& facts,
                                        const std::map<std::string, std::string>& digests);
  // As this node sees them now; the ledger says which of them have ended.
  absl::StatusOr<std::vector<SharedInflight>> InFlight() { return ListInFlight(layout_); }
  absl::StatusOr<std::vector<SharedInflight>> InTrash() { return ListInTrash(layout_); }
  absl::Status Discard(const std::string& name);
  absl::StatusOr<bool> RemoveFromTrash(const std::string& name, RemovalBudget& budget);
  absl::StatusOr<uint64_t> InodeOf(const std::string& tag, int64_t sequence);
  absl::StatusOr<bool> Remove(const std::string& tag, int64_t sequence, RemovalBudget& budget,
                              uint64_t inode = 0);
  // See SharedRecords::Store. The record is the one of the last LoadRecord or StoreRecord, changed.
  absl::StatusOr<RecordVersion> StoreRecord(storage::v1::SharedRunRecord record);
  // Reads the pointer files, and gives each the content that the newest undamaged of these checkpoints says,
  // which are those that the ledger calls committed, with their marks. After each commit, after BeginTerm,
  // and when damage was marked.
  absl::StatusOr<PointerFiles> UpdatePointers(const std::map<int64_t, CommittedCheckpoint>& committed);
  // Before the removal of one of them: as PointerWriter::Release.
  absl::StatusOr<PointerFiles> ReleasePointers(const std::map<int64_t, CommittedCheckpoint>& committed,
                                               int64_t sequence);

 private:
  // What belongs to one term of this daemon as coordinator.
  struct Term {
    int64_t number = 0;
    ScopedHandle dir;
    std::unique_ptr<PointerWriter> pointers;
  };

  absl::Status Start();
  // Makes <root>/.ckptd/shared again if it is not the directory any more that was opened. OK also if that
  // cannot be found out: then the call itself says what is wrong.
  absl::Status EnsureDirectory();
  absl::Status MakeDirectoryAnew();
  SharedRootStore(SharedLayout layout, Clock* clock, SharedRootStoreOptions options);
  absl::Status Probe();
  absl::StatusOr<Term> OpenTerm(const SharedLayout& layout, int64_t term);
  absl::Status CheckTermBegun() const;
  void MarkCheckpoints(std::map<int64_t, CommittedCheckpoint>& checkpoints) const;
  std::set<int64_t> Pinned() const;

  SharedLayout layout_;
  FileStat shared_stat_{};      // Of <root>/.ckptd/shared.
  std::string run_id_;          // Empty: not asked for yet.
  std::set<std::string> made_;  // The names in flight that this store has made,
  std::set<std::string> lost_;  // and those that were removed with <root>/.ckptd.
  FileSystem& fs_;
  const SharedRootStoreOptions options_;
  ProbeResult probe_;
  SharedScanner scanner_;
  SharedRecords records_;
  storage::v1::SharedRunRecord record_;   // As it was read or stored last.
  std::map<int64_t, bool> decided_pins_;  // By sequence: what the ledger says.
  Term term_;
};

}  // namespace ckptd
#endif  // CKPTD_STORAGE_COMMIT_SHARED_SHARED_ROOT_STORE_H_
