// A root on a file system that several nodes share, in memory, and the SharedFilesIo through which one daemon
// uses it.
//
// The model follows daemon/root_io: one metadata worker for each daemon, which does one thing at a time, and
// writes in parallel. The seed decides how long each request takes, which requests fail, and which ones see
// old names. A daemon may be paused before a request is carried out and before it is answered. When a daemon
// dies, the request under way is carried out or not.
#ifndef CKPTD_TESTS_SIM_NODES_SHARED_DISK_H_
#define CKPTD_TESTS_SIM_NODES_SHARED_DISK_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/engine/seams/shared_files_io.h"
#include "storage/base/callback_scope.h"
#include "tests/sim/marks.h"
#include "tests/sim/random.h"
#include "tests/sim/schedule.h"
#include "tests/sim_nodes/oracle.h"
#include "tests/testing/pausable_etcd.h"

namespace ckptd::sim_nodes {

class SharedBucket;

// Percentages of requests, while faults are on.
struct SharedDiskFaults {
  int slow = 0;          // They take up to four seconds longer.
  int stale = 0;         // They see names as they were up to kStaleness before.
  int write = 0;         // EIO while a part is written.
  int make = 0;          // No in-flight directory can be made.
  int publish = 0;       // EIO before the rename,
  int lost_publish = 0;  // and after it.
  int scan = 0;
  int open = 0;
  int remove = 0;
  int conflict = 0;  // Of saves: their parts make no checkpoint.
  // Whether daemons notice that the file system hangs.
  bool shows_hangs = false;
  // Whether the root records the damaged checkpoints, and the terms of coordinators.
  bool has_records = false;
};

class SharedDisk {
 public:
  struct Part {
    storage::v1::PartRecord record;
    sim::Contents contents;
  };
  struct Checkpoint {
    storage::v1::ManifestSummary summary;
    std::vector<Part> parts;
    uint64_t inode = 0;  // Of its directory.
  };
  using CheckpointPtr = std::shared_ptr<const Checkpoint>;

  SharedDisk(SharedDiskFaults faults, uint64_t seed, sim::Schedule* schedule, Oracle* oracle);

  void EndFaults() { faulty_ = false; }
  // A request that begins before `until` is carried out no earlier.
  void HangUntil(Instant until) { hangs_until_ = until; }
  // As above, for one node alone.
  void HangUntil(const std::string& node, Instant until) { node_hangs_until_[node] = until; }
  // When the last hanging request is carried out.
  Instant last_hang_ends() const { return last_hang_ends_; }
  // Another program makes a directory at the tag, unless there is one.
  void AddForeign(const std::string& tag);
  // Puts back a checkpoint that was removed and whose tag is free, as a copy that was made before. Returns
  // its sequence; 0: there is none.
  int64_t PutBack(uint64_t which);
  // The checkpoints that were put back and still exist: tags by sequence.
  std::map<int64_t, std::string> put_back() const;
  // Checks that each pointer names the newest checkpoint that it ever named, or one that has replaced that
  // checkpoint. Returns the error in words. Not checked if bytes have changed or another program has taken a
  // tag.
  std::string CheckPointers() const;
  // Sequences of the saves in flight.
  std::vector<int64_t> InFlight() const;
  // The newest checkpoint; 0: there is none.
  int64_t newest() const;
  // The tags of all checkpoints, oldest first.
  std::vector<std::string> Tags() const;
  // Changes bytes of one rank's part of the newest checkpoint that is not suspect; `which` chooses the rank.
  // No-op if that checkpoint or the one before it is damaged already: the job can always resume from a whole
  // one.
  void Damage(uint64_t which);
  // The damage that a rank finds if it reads every `of`-th part of this checkpoint, from its own on; nullopt:
  // the rank finds all bytes right.
  std::optional<storage::v1::Damage> FindDamage(int64_t sequence, int rank, int of) const;
  // The sequences of all checkpoints.
  std::set<int64_t> Sequences() const;
  // The sequences that the root records as damaged.
  std::set<int64_t> RecordedDamage() const;
  // All daemons have ended, and etcd is restored: terms that begin from now on come after those that the root
  // has seen. A save that was not published may be decided anew, or another one may get its sequence. Only
  // etcd knows the pointers that a re-save takes over from a checkpoint that it has already removed.
  void EndTerms() {
    first_term_ = highest_term_ + 1;
    manifests_.clear();
    const std::set<int64_t> there = Sequences();
    std::erase_if(newest_pointed_, [&there](const auto& pointer) { return !there.contains(pointer.second); });
  }
  // What is at the tag; null: nothing. Of a tag that has a checkpoint, as all nodes will see it.
  CheckpointPtr Find(const std::string& tag) const;
  // As above, as this node sees it now.
  CheckpointPtr FindAsSeenBy(const std::string& node, const std::string& tag);
  bool IsDamaged(int64_t sequence) const { return damaged_.contains(sequence); }
  bool WasPutBack(int64_t sequence) const { return put_back_.contains(sequence); }
  // A coordinator's copy from elsewhere gets its tag, unless a later term has begun.
  absl::Status PutIn(const std::string& node, const CheckpointPtr& copy, int64_t term);
  // What is told of checkpoints that are published and removed. May be null; must outlive it.
  void SetBucket(SharedBucket* bucket) { bucket_ = bucket; }
  // An empty disk takes its place. No daemon lives.
  void Lose();
  // Whether all removals that have begun have ended.
  bool removals_ended() const { return names_.half_removed.empty(); }

 private:
  friend class SimSharedFiles;

  // The names in the root. A half-removed directory no longer counts as a checkpoint, but still has files.
  struct Names {
    std::map<std::string, CheckpointPtr> tags;
    std::map<std::string, int64_t> half_removed;     // Sequences by tag.
    std::map<std::string, int64_t> inflight, trash;  // Sequences by name.
  };

  bool Hits(int percent) { return faulty_ && random_.Percent(percent); }
  bool PartsConflict(int64_t sequence) const;
  Duration Latency(Duration shortest, Duration longest);
  // For how long a request that this node begins now hangs.
  Duration Hang(const std::string& node);
  // Call it before each change of names_.
  void Remember(const std::string& node);
  static SharedPlace PlaceOf(const Names& view, const SharedInflight& save);
  // The names as a node sees them now. It always sees its own changes.
  Names View(const std::string& node);

  // Carry out requests of the coordinator.
  absl::StatusOr<std::string> MakeInflight(const std::string& node, const std::string& tag, int64_t sequence);
  static std::map<std::string, std::string> InheritedBy(const Names& names, const Checkpoint& old,
                                                        const storage::v1::ManifestSummary& save);
  absl::StatusOr<SharedRootIo::Replaced> FindReplaced(const std::string& node,
                                                      const SharedRootIo::Publication& publication,
                                                      const std::set<int64_t>& pinned);
  absl::StatusOr<SharedPlace> Find(const std::string& node, const SharedInflight& save);
  absl::StatusOr<SharedRootIo::Published> Publish(const std::string& node,
                                                  const SharedRootIo::Publication& publication,
                                                  std::set<int64_t> pinned);
  absl::StatusOr<bool> Remove(const std::string& node, const std::string& tag, int64_t sequence,
                              uint64_t inode);
  // Gives each pointer file the content from the newest of these checkpoints that names it and is not known
  // to be damaged.
  PointerFiles UpdatePointers(const std::map<std::string, CheckpointPtr>& tags,
                              const std::map<int64_t, storage::v1::Damage>& damage);
  absl::Status Sweep(const std::string& node, int64_t last, const std::set<int64_t>& unfinished);
  // Whether the save may replace the content of its tag.
  absl::Status CheckPlace(const Names& names, const std::string& tag, const Checkpoint& save,
                          const std::set<int64_t>& pinned) const;
  absl::StatusOr<Checkpoint> MakeCheckpoint(const SharedRootIo::Publication& publication) const;
  absl::StatusOr<std::vector<Part>> PartsOf(const SharedRootIo::Publication& publication) const;

  const SharedDiskFaults faults_;
  const uint64_t seed_;
  sim::Random random_;
  sim::Schedule* const schedule_;
  Oracle* const oracle_;
  SharedBucket* bucket_ = nullptr;
  bool faulty_ = true;
  Instant hangs_until_, last_hang_ends_;
  std::map<std::string, Instant> node_hangs_until_;

  Names names_;
  // The values of names_ until the given times, and the nodes that changed it then; oldest first.
  struct Past {
    Instant until;
    std::string changed_by;
    Names names;
  };
  std::deque<Past> past_;
  std::set<std::string> foreign_;
  // Records that nodes have made durable, by in-flight name and digest.
  std::map<std::string, std::map<std::string, std::vector<Part>>> records_;
  // Manifests that a coordinator has written, by in-flight name. (An etcd that was restored may give the
  // sequence of a failed save again.)
  std::map<std::string, std::string> manifests_;
  std::map<int64_t, int> damaged_;  // By sequence: the rank whose part is damaged.
  // By name: which checkpoint a pointer file names, and since when.
  std::map<std::string, std::pair<int64_t, Instant>> pointers_;
  // By name of a pointer: the newest checkpoint that has named it.
  std::map<std::string, int64_t> newest_pointed_;
  std::map<int64_t, CheckpointPtr> removed_;  // By sequence.
  std::set<int64_t> put_back_;                // Sequences.
  uint64_t next_inode_ = 1;
  int64_t highest_term_ = 0, first_term_ = 0;
  std::map<int64_t, storage::v1::Damage> record_;  // By sequence: the record that coordinators have written.
  std::set<int64_t> pin_record_;                   // Of it: the pinned sequences.
  int made_ = 0;
};

// The requests of one daemon. They are carried out and answered when the daemon is not paused.
class SimSharedFiles : public SharedFilesIo {
 public:
  template <typename T>
  using Callback = ckptd::Callback<T>;
  static constexpr char kRunId[] = "0123456789abcdef0123456789abcdef";

  // All must outlive it. `incarnation`: of the daemon.
  SimSharedFiles(SharedDisk* disk, Pause* pause, std::string node, std::string incarnation);
  ~SimSharedFiles() override;

  void Open(Callback<absl::StatusOr<RootSnapshot>> done) override;
  void Rescan(Callback<absl::StatusOr<RootSnapshot>> done) override;
  void RunId(Callback<absl::StatusOr<RunOfRoot>> done) override;
  void CheckTarget(std::string tag, std::vector<std::string> pointers, Callback<absl::Status> done) override;
  void FreeBytes(Callback<absl::StatusOr<int64_t>> done) override;

  void OpenPart(InflightId64 id, const std::string& tag, int64_t sequence, const std::string& inflight,
                Callback<absl::Status> done) override;
  void WritePart(InflightId64 id, storage::v1::PartRecord record, std::vector<FileImage> files,
                 std::shared_ptr<CheckpointReader> base, std::shared_ptr<std::atomic<int64_t>> written_bytes,
                 Callback<absl::StatusOr<storage::v1::PartRecord>> done) override;
  void FinishPart(InflightId64 id, std::vector<storage::v1::PartRecord> parts,
                  Callback<absl::StatusOr<std::string>> done) override;
  void Discard(InflightId64 id, Callback<absl::Status> done) override;

  void LoadCheckpoint(const std::string& tag, int64_t sequence,
                      Callback<absl::StatusOr<LoadedCheckpoint>> done) override;
  void OpenCheckpoint(std::string tag, int64_t sequence,
                      Callback<absl::StatusOr<std::shared_ptr<CheckpointReader>>> done) override;
  void SetDamage(std::string tag, int64_t sequence, std::optional<storage::v1::Damage> damage,
                 Callback<absl::StatusOr<PointerFiles>> done) override;
  void ReleasePointers(std::string tag, int64_t sequence,
                       Callback<absl::StatusOr<PointerFiles>> done) override;
  void CheckImages(std::vector<FileImage> images, std::vector<storage::v1::FileRecord> records,
                   int32_t chunk_bytes, Callback<absl::Status> done) override;

  // ---- as the coordinator
  void BeginTerm(int64_t term, Callback<absl::Status> done) override;
  void MakeInflight(const std::string& tag, int64_t sequence,
                    Callback<absl::StatusOr<std::string>> done) override;
  void FindReplaced(const Publication& publication, Callback<absl::StatusOr<Replaced>> done) override;
  void Find(const SharedInflight& save, Callback<absl::StatusOr<SharedPlace>> done) override;
  void Publish(const Publication& publication, Callback<absl::StatusOr<Published>> done) override;
  void EndTerm() override {
    coordinates_ = false;
    pointers_.reset();
  }
  void CheckRemovable(const std::string& tag, int64_t sequence,
                      Callback<absl::StatusOr<uint64_t>> done) override;
  void Remove(const std::string& tag, int64_t sequence, uint64_t inode,
              Callback<absl::StatusOr<bool>> done) override;
  void Sweep(int64_t last, const std::set<int64_t>& unfinished, Callback<absl::Status> done) override;

  // ---- calls that the simulation does not make
  void SetPinned(std::string tag, int64_t sequence, bool pinned, Callback<absl::Status> done) override;
  void TryNodes(NodesToTry trying, Callback<absl::StatusOr<NodesTried>> done) override;
  void ReadBack(std::shared_ptr<CheckpointReader> reader, std::string path, int64_t offset, int64_t size,
                Callback<absl::Status> done) override;
  void ReadFiles(std::shared_ptr<CheckpointReader> reader, std::vector<FileTarget> files,
                 Callback<absl::Status> done) override;
  void ListForeign(Callback<absl::StatusOr<std::vector<ForeignCheckpoint>>> done) override;
  void SurveyForeign(std::string tag, uid_t owner, int32_t chunk_bytes,
                     std::shared_ptr<SurveyProgress> progress,
                     Callback<absl::StatusOr<ForeignSurvey>> done) override;
  std::optional<Instant> pending_since() const override {
    return disk_.faults_.shows_hangs ? running_since_ : std::nullopt;
  }
  bool has_pending() const override { return running_ != nullptr || writing_ > 0; }

 private:
  // Carries out a request, and returns the function that answers it.
  using Request = absl::AnyInvocable<absl::AnyInvocable<void()>()>;
  struct OpenedPart {
    std::string inflight;
    std::map<int, SharedDisk::Part> written;  // By rank.
  };

  template <typename T>
  void Ask(Duration latency, Callback<T> done, absl::AnyInvocable<T()> work);
  void RunNext();
  // Runs an event after a while, unless the daemon has ended, and when it is not paused.
  void Later(Duration delay, absl::AnyInvocable<void()> event);
  absl::StatusOr<RootSnapshot> Scan();
  PointerFiles UpdatePointers(const SharedDisk::Names& view);
  std::map<int64_t, storage::v1::Damage> Damages() const;
  std::set<int64_t> Pinned() const;
  void RecordMarks();
  CommittedCheckpoint Describe(const SharedDisk::Checkpoint& checkpoint) const;
  void EndWrite(InflightId64 id, SharedDisk::Part part,
                Callback<absl::StatusOr<storage::v1::PartRecord>> done);

  SharedDisk& disk_;
  Pause* const pause_;
  const std::string node_, incarnation_;
  std::deque<std::pair<Duration, Request>> waiting_;
  std::shared_ptr<Request> running_;
  std::optional<Instant> running_since_;
  int writing_ = 0;
  bool term_begun_ = false, coordinates_ = false;
  std::optional<PointerFiles> pointers_;  // As of the last scan in this term.
  std::map<InflightId64, OpenedPart> parts_;
  std::map<int64_t, std::optional<storage::v1::Damage>> damage_;  // As the daemon has set it.
  std::map<int64_t, bool> pins_;                                  // Likewise.
  std::set<int64_t> pin_record_;                                  // As it was read last.
  std::map<int64_t, storage::v1::Damage> record_;                 // As of the last scan.
  bool record_is_old_ = false;
  CallbackScope scope_;
};

}  // namespace ckptd::sim_nodes
#endif  // CKPTD_TESTS_SIM_NODES_SHARED_DISK_H_
