// A root in memory: answers when the test runs its queue, and keeps what was "written" for inspection.
#ifndef CKPTD_TESTS_TESTING_FAKE_ROOT_IO_H_
#define CKPTD_TESTS_TESTING_FAKE_ROOT_IO_H_

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/engine/seams/local_root_io.h"

namespace ckptd {

// What survives a restart of the daemon: the disk of one root. Shared between FakeRootIo objects.
struct FakeDisk {
  std::map<int64_t, CommittedCheckpoint> committed;
  std::map<int64_t, Manifest> manifests;
  std::map<std::string, std::string> bytes;  // "<sequence>/<path>" -> content.
  storage::v1::RunRecord run_record;
  int64_t free_bytes = int64_t{1} << 40;
  int64_t trash_bytes = 0;
  std::set<int64_t> unreadable;  // Sequences with a missing file.
  bool locked = false;           // Another daemon holds the lock.
  absl::Status open_error;
  std::vector<std::string> foreign;  // Tags in the way of a save: foreign directories.
  // Complete checkpoints of another program, with the time of their marker (us).
  std::map<std::string, int64_t> finished;
  std::vector<std::string> directories;  // Names that no pointer may use.
  std::vector<RecoveredSave> recovered;  // What the next opens of the root say.
  std::vector<std::string> evicted;      // Tags, in order.
  int outcomes_at_evict = 0;             // Outcomes in the run record at the last eviction.
  std::multiset<int64_t> readers;        // Sequences with an open reader.
  std::multiset<int64_t> kept_in_trash;  // Likewise, at the last EmptyTrash.
  // What was evicted, by sequence, beside trash_bytes, which the next EmptyTrash frees.
  std::map<int64_t, TrashedCheckpoint> trashed;
  // A publication that ends INDETERMINATE has put the checkpoint in its place.
  bool unknown_is_published = false;
};

class FakeRootIo : public LocalRootIo {
 public:
  // Work that the test runs: callbacks in their order.
  using Queue = std::deque<absl::AnyInvocable<void()>>;

  FakeRootIo(std::shared_ptr<FakeDisk> disk, Queue* queue) : disk_(std::move(disk)), queue_(queue) {}

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
  std::optional<Instant> pending_since() const override { return pending_since_; }
  bool has_pending() const override { return *pending_ > 0; }

  // Faults. Calls that are held go to held_ instead of the queue, until ReleaseHeld().
  std::set<std::string, std::less<>> held;                  // By the name of the call: "Evict".
  std::map<std::string, absl::Status, std::less<>> errors;  // The call does nothing and fails.
  std::map<std::string, int, std::less<>> calls;
  std::vector<int64_t> write_bases;  // Of each WritePart: the sequence of its base; 0: none.
  bool hold_writes = false, hold_publish = false, hold_target = false;
  absl::Status write_error, discard_error;
  PointerFiles more_pointers;  // In addition to those that Publish and a scan find.
  // After kIndeterminate the root is read-only until Rescan, as the real one is.
  PublishResult publish_result{PublishOutcome::kCommitted, absl::OkStatus()};
  PublishResult adopt_result{PublishOutcome::kCommitted, absl::OkStatus()};
  std::shared_ptr<SurveyProgress> surveyed;  // By the last SurveyForeign.
  uid_t survey_owner = 0;                    // Likewise.
  TrashTerms trash_terms;                    // Of the last EmptyTrash.
  void ReleaseHeld();
  std::set<std::string> inflight() const;  // Tags that were neither published nor discarded.
  void SetPendingSince(std::optional<Instant> since) { pending_since_ = since; }

 private:
  void Run(std::string_view call, bool hold, absl::AnyInvocable<void()> work);
  absl::Status ErrorOf(std::string_view call) const;
  absl::Status CheckWritable() const;
  RootSnapshot Snapshot() const;
  PointerFiles Pointers() const;
  std::vector<ForeignTag> Foreign() const;
  TrashLeft EmptyNow(TrashTerms terms);

  std::shared_ptr<FakeDisk> disk_;
  Queue* queue_;
  std::map<InflightId64, std::pair<std::string, int64_t>> inflight_;  // Tag, sequence.
  std::vector<absl::AnyInvocable<void()>> held_;
  std::shared_ptr<int> pending_ = std::make_shared<int>(0);
  std::map<std::string, std::string> written_;  // Path -> the last content written there.
  std::optional<Instant> pending_since_;
  bool read_only_ = false;
};

}  // namespace ckptd
#endif  // CKPTD_TESTS_TESTING_FAKE_ROOT_IO_H_
