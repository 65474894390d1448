// A root of the simulation: its disk, which outlives daemons, and the RootIo through which a daemon uses it.
//
// The model follows the real RootIo: a metadata worker and a query thread, each of which does one thing at a
// time, and I/O in parallel; parts allocate before they write; a failed sync after a rename makes the store
// read-only until Rescan; opening recovers what an earlier daemon left in flight. The seed decides how long
// each operation takes and which ones fail. When a daemon dies, finished operations stay done, and those in
// progress are done or not.
#ifndef CKPTD_TESTS_SIM_SIM_DISK_H_
#define CKPTD_TESTS_SIM_SIM_DISK_H_

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "daemon/engine/seams/local_root_io.h"
#include "storage/base/callback_scope.h"
#include "tests/sim/marks.h"
#include "tests/sim/oracle.h"
#include "tests/sim/random.h"
#include "tests/sim/schedule.h"

namespace ckptd::sim {

// Percentage of operations that fail, while faults are on.
struct DiskFaults {
  int slow = 0;
  int write = 0;          // EIO while writing a part.
  int create = 0;         // Creating an in-flight directory fails.
  int publish = 0;        // Fails before the rename.
  int indeterminate = 0;  // The sync after the rename fails.
  int discard = 0;        // Half of these after the rename.
  int evict = 0;          // Like discard.
  int trash = 0;
  int record = 0;  // Half of these reach the disk.
  int pin = 0;
  int open = 0;  // Opening a checkpoint.
  int rescan = 0;
  int read = 0;  // EIO of queries: opening the root, its free bytes, whether a tag may be used.
};

class SimBucket;
class SimDisk;

// A file system. Roots on the same volume share its space.
struct Volume {
  int64_t capacity = 0;
  std::vector<const SimDisk*> roots;
  int64_t free_bytes() const;
};

class SimDisk {
 public:
  SimDisk(int run, std::shared_ptr<Volume> volume, DiskFaults faults, uint64_t seed, Schedule* schedule,
          Oracle* oracle)
      : run_(run),
        volume_(std::move(volume)),
        faults_(faults),
        random_(seed),
        schedule_(schedule),
        oracle_(oracle) {
    volume_->roots.push_back(this);
  }
  SimDisk(const SimDisk&) = delete;
  SimDisk& operator=(const SimDisk&) = delete;

  int run() const { return run_; }
  // The bucket of the run. Null: nothing is uploaded.
  void SetBucket(SimBucket* bucket) { bucket_ = bucket; }
  // Replaces the disk by an empty one. No daemon may have it open.
  void Lose();
  void EndFaults() { faulty_ = false; }
  // An operation that begins before `until` ends no earlier than `until`.
  void HangUntil(Instant until) { hangs_until_ = until; }
  Instant hangs_until() const { return hangs_until_; }
  void LockUntil(Instant until) { locked_until_ = until; }
  // Call it when no operation is in flight: describes what is left and should not be.
  std::string Leftovers() const;
  int64_t used_bytes() const;
  int64_t free_bytes() const { return volume_->free_bytes(); }
  // True if space will be freed without the save of this sequence: by trash, or by saves that may fail.
  bool MayGiveRoom(int64_t but_sequence) const;
  // Damages a file of a committed checkpoint: every later read finds a wrong checksum.
  void DamageFile(uint64_t which);
  // Another program completes or overwrites a checkpoint at this time. No-op if the tag is one of ckptd's.
  void AddForeign(const std::string& tag, int64_t done_us);
  bool IsForeign(const std::string& tag) const { return foreign_.contains(tag); }
  std::vector<std::string> ForeignTags() const;
  // Changes by other programs in the root. MoveIn moves a copy of the newest checkpoint of `from` in, newer
  // than all checkpoints here, under a tag of its own. PutBack puts back a checkpoint that was evicted.
  // RemoveCkptdFolder removes .ckptd, with the saves in flight and the trash. False: there is no such
  // checkpoint or content.
  bool MoveIn(const SimDisk& from);
  bool PutBack(uint64_t which);
  bool RemoveCkptdFolder();
  // Number of checkpoints that daemons opened.
  int64_t opened() const { return opened_; }
  // True if the disk holds the checkpoint, or a newer one of its tag that the daemon has not been told of.
  bool Holds(const std::string& tag, int64_t sequence) const;
  // True if this very checkpoint is on the disk and any of its files has bytes.
  bool HasBytes(const std::string& tag, int64_t sequence) const;

 private:
  friend class SimBucket;
  friend class SimRootIo;

  struct Generation {
    storage::v1::ManifestSummary summary;
    std::vector<storage::v1::PartRecord> parts;
    std::map<int, Contents> contents;
    std::map<std::string, Marks> marks;  // By path.
    std::shared_ptr<std::set<std::string>> rotten = std::make_shared<std::set<std::string>>();
    int64_t bytes = 0;
    bool pinned = false;
    std::optional<storage::v1::Damage> damage;
  };
  struct InflightDir {
    int64_t number = 0;  // The living daemon's number of the save; 0: left by an earlier daemon.
    std::string tag;
    int64_t sequence = 0;
    Generation found;
    std::set<int> recorded;  // Ranks whose part record is on disk.
  };
  struct Foreign {
    int64_t done_us = 0;
    int64_t version = 0;  // Counts all versions ever written.
    std::map<std::string, Marks> marks;
  };
  struct TrashEntry {
    int64_t sequence = 0;
    int64_t bytes = 0;
    std::optional<Generation> whole = std::nullopt;  // A checkpoint, which may be brought back.
    int64_t moved_us = 0;
  };
  void MoveToTrash(Generation checkpoint);
  // What the next step of a pass removes, as Trash::Next chooses it; the end: nothing.
  std::vector<TrashEntry>::iterator NextInTrash(const TrashTerms& terms,
                                                const std::multiset<int64_t>& readers);
  TrashLeft LeftInTrash(const TrashTerms& terms) const;

  bool Hits(int percent) { return faulty_ && random_.Percent(percent); }
  Duration Latency(Duration shortest, Duration longest);
  // Renames the directory over the tag, or returns why it cannot.
  absl::Status Rename(InflightDir& dir);
  std::map<int64_t, InflightDir>::iterator Find(int64_t number);
  void Recover(std::vector<RecoveredSave>* recovered);
  absl::StatusOr<RootSnapshot> Scan(std::vector<RecoveredSave> recovered);

  const int run_;
  const std::shared_ptr<Volume> volume_;
  const DiskFaults faults_;
  Random random_;
  Schedule* const schedule_;
  Oracle* const oracle_;
  SimBucket* bucket_ = nullptr;
  bool faulty_ = true;
  Instant hangs_until_, locked_until_;

  std::map<std::string, Generation> tags_;
  std::map<std::string, Foreign> foreign_;
  int64_t next_version_ = 1;
  std::map<int64_t, InflightDir> inflight_;  // By a number that is never reused.
  int64_t next_dir_ = 1;
  int64_t opened_ = 0;
  int64_t moved_in_ = 0;             // How many checkpoints were moved in.
  std::vector<Generation> evicted_;  // For PutBack.
  std::set<int64_t> lost_;           // The living daemon's numbers of saves that were removed with .ckptd.
  std::set<std::string> unseen_;     // Tags that other programs have made, and no scan has found.
  std::vector<TrashEntry> trash_;
  storage::v1::RunRecord record_;
};

class SimRootIo : public LocalRootIo {
 public:
  explicit SimRootIo(std::shared_ptr<SimDisk> disk) : disk_(std::move(disk)) {}
  // The daemon has died.
  ~SimRootIo() override;

  void Open(Callback<absl::StatusOr<RootSnapshot>> done) override;
  void CheckTarget(std::string tag, std::vector<std::string> pointers, Callback<absl::Status> done) override;
  void FreeBytes(Callback<absl::StatusOr<int64_t>> done) override;
  void CreateInflight(InflightId64 id, std::string tag, int64_t sequence, int64_t manifest_bytes,
                      Callback<absl::Status> done) override;
  void WritePart(InflightId64 id, storage::v1::PartRecord record, std::vector<FileImage> files,
                 std::shared_ptr<CheckpointReader> base, std::shared_ptr<std::atomic<int64_t>> written_bytes,
                 Callback<absl::StatusOr<storage::v1::PartRecord>> done) override;
  void Publish(InflightId64 id, storage::v1::ManifestSummary summary,
               std::vector<storage::v1::PartRecord> parts, Callback<PublishResult> done) override;
  void Discard(InflightId64 id, Callback<absl::Status> done) override;
  void Evict(std::string tag, int64_t sequence, Callback<absl::Status> done) override;
  void EmptyTrash(TrashTerms terms, Callback<absl::StatusOr<TrashLeft>> done) override;
  void ListTrash(Callback<absl::StatusOr<std::vector<TrashedCheckpoint>>> done) override;
  void Undelete(std::string tag, int64_t sequence, Callback<absl::StatusOr<Undeleted>> done) override;
  void SaveRunRecord(storage::v1::RunRecord record, Callback<absl::Status> done) override;
  void SetPinned(std::string tag, int64_t sequence, bool pinned, Callback<absl::Status> done) override;
  void SetDamage(std::string tag, int64_t sequence, std::optional<storage::v1::Damage> damage,
                 Callback<absl::StatusOr<PointerFiles>> done) override;
  void ReleasePointers(std::string tag, int64_t sequence,
                       Callback<absl::StatusOr<PointerFiles>> done) override;
  void OpenCheckpoint(std::string tag, int64_t sequence,
                      Callback<absl::StatusOr<std::shared_ptr<CheckpointReader>>> done) override;
  void Rescan(Callback<absl::StatusOr<RootSnapshot>> done) override;
  void ReadBack(std::shared_ptr<CheckpointReader> reader, std::string path, int64_t offset, int64_t size,
                Callback<absl::Status> done) override;
  void ReadFiles(std::shared_ptr<CheckpointReader> reader, std::vector<FileTarget> files,
                 Callback<absl::Status> done) override;
  void CheckImages(std::vector<FileImage> images, std::vector<storage::v1::FileRecord> records,
                   int32_t chunk_bytes, Callback<absl::Status> done) override;
  void ListForeign(Callback<absl::StatusOr<std::vector<ForeignCheckpoint>>> done) override;
  void SurveyForeign(std::string tag, uid_t owner, int32_t chunk_bytes,
                     std::shared_ptr<SurveyProgress> progress,
                     Callback<absl::StatusOr<ForeignSurvey>> done) override;
  void Adopt(ForeignSurvey survey, storage::v1::ManifestSummary summary,
             Callback<PublishResult> done) override;
  std::optional<Instant> pending_since() const override;

 private:
  // Runs the operation and returns the callback that reports to the engine.
  using Operation = absl::AnyInvocable<absl::AnyInvocable<void()>()>;
  // Runs one operation at a time, in order.
  struct Worker {
    std::deque<std::pair<Duration, Operation>> waiting;
    std::shared_ptr<Operation> running;
    Instant since;
  };
  struct Write {
    InflightId64 id;
    storage::v1::PartRecord record;
    std::vector<FileImage> files;
    std::shared_ptr<std::atomic<int64_t>> written;
    Callback<absl::StatusOr<storage::v1::PartRecord>> done;
    int64_t use = 0;
    Contents contents;
    std::map<std::string, Marks> marks;
    Instant since;
  };

  template <typename T, typename Work>
  void Ask(Worker& worker, Duration latency, Callback<T> done, Work work);
  void RunNext(Worker& worker);
  void StartWrite(std::shared_ptr<Write> write);
  void EndWrite(std::shared_ptr<Write> write);
  void EmptyStep(TrashTerms terms, Callback<absl::StatusOr<TrashLeft>> done);
  absl::Status Writable() const;
  // Until a scan the engine does not know the state of the disk: it marks no damage, and may ask for a tag
  // that is taken.
  bool WaitsForScan() const { return latched_ || scans_ > 0; }
  bool Hits(int percent) { return disk_->Hits(percent); }

  const std::shared_ptr<SimDisk> disk_;
  Worker metadata_, queries_, reading_;
  std::set<std::shared_ptr<Write>> writes_;
  std::set<int64_t> read_uses_;
  std::map<std::string, std::vector<storage::v1::ManifestSummary>>
      beside_;  // The committed checkpoints when the survey read it.
  bool latched_ = false;
  int scans_ = 0;  // Under way.
  const std::shared_ptr<std::multiset<int64_t>> readers_ = std::make_shared<std::multiset<int64_t>>();
  CallbackScope scope_;
};

}  // namespace ckptd::sim
#endif  // CKPTD_TESTS_SIM_SIM_DISK_H_
