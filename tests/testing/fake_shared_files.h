// A root that several nodes share, in memory, with all that a node asks of its file system: FakeSharedRoot
// and the parts of saves, without bytes.
#ifndef CKPTD_TESTS_TESTING_FAKE_SHARED_FILES_H_
#define CKPTD_TESTS_TESTING_FAKE_SHARED_FILES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/engine/seams/shared_files_io.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"
#include "tests/testing/fake_shared_root.h"
#include "tests/testing/pausable_etcd.h"

namespace ckptd {

// Answers after `after`, and not while its daemon is paused.
class FakeSharedFiles : public SharedFilesIo {
 public:
  FakeSharedFiles(FakeSharedRoot* root, Pause* pause, FakeSharedRoot::After after, std::string run_id)
      : root_(*root),
        pause_(pause),
        after_(std::move(after)),
        run_id_(std::move(run_id)),
        coordinator_(root->Open({&hang_, pause})) {}

  // Of the root's directory.
  uint64_t root_inode = 7;
  uint32_t root_uid = 1000;
  absl::Status pin_error;  // Why no pin can be recorded.
  absl::StatusOr<NodesTried> verdict =
      NodesTried();  // Of the trials with other nodes, which it was asked for.
  Duration trial_takes = std::chrono::milliseconds(1);
  std::vector<NodesToTry> tried;

  int open_readers() const { return *readers_; }
  // Nothing that this node asks for is carried out or answered until EndHang.
  void Hang(Instant now) {
    hangs_since_ = now;
    hang_.Begin();
  }
  void EndHang() {
    hangs_since_.reset();
    hang_.End();
  }

  void Open(ckptd::Callback<absl::StatusOr<RootSnapshot>> done) override { Say(std::move(done), Snapshot()); }
  void Rescan(ckptd::Callback<absl::StatusOr<RootSnapshot>> done) override {
    Say(std::move(done), Snapshot());
  }
  void RunId(ckptd::Callback<absl::StatusOr<RunOfRoot>> done) override {
    Say<absl::StatusOr<RunOfRoot>>(std::move(done), RunOfRoot{run_id_, root_inode, root_uid});
  }
  void TryNodes(NodesToTry trying, ckptd::Callback<absl::StatusOr<NodesTried>> done) override {
    tried.push_back(std::move(trying));
    after_(trial_takes, [this, alive = std::weak_ptr<bool>(alive_), done = std::move(done)]() mutable {
      if (!alive.expired()) Say(std::move(done), verdict);
    });
  }
  void CheckTarget(std::string, std::vector<std::string>, ckptd::Callback<absl::Status> done) override {
    Say(std::move(done), absl::OkStatus());
  }
  void FreeBytes(ckptd::Callback<absl::StatusOr<int64_t>> done) override {
    Say<absl::StatusOr<int64_t>>(std::move(done), int64_t{1} << 40);
  }
  void OpenPart(InflightId64, const std::string&, int64_t, const std::string& inflight,
                ckptd::Callback<absl::Status> done) override {
    Say(std::move(done),
        root_.inflight.contains(inflight) ? absl::OkStatus() : absl::NotFoundError(inflight));
  }
  void WritePart(InflightId64, storage::v1::PartRecord record, std::vector<FileImage>,
                 std::shared_ptr<CheckpointReader>, std::shared_ptr<std::atomic<int64_t>>,
                 ckptd::Callback<absl::StatusOr<storage::v1::PartRecord>> done) override {
    Say<absl::StatusOr<storage::v1::PartRecord>>(std::move(done), std::move(record));
  }
  void FinishPart(InflightId64 id, std::vector<storage::v1::PartRecord>,
                  ckptd::Callback<absl::StatusOr<std::string>> done) override {
    Say<absl::StatusOr<std::string>>(std::move(done), absl::StrCat("digest ", id));
  }
  void Discard(InflightId64, ckptd::Callback<absl::Status> done) override {
    Say(std::move(done), absl::OkStatus());
  }
  void LoadCheckpoint(const std::string& tag, int64_t sequence,
                      ckptd::Callback<absl::StatusOr<LoadedCheckpoint>> done) override {
    if (!Has(tag, sequence)) return Say<absl::StatusOr<LoadedCheckpoint>>(std::move(done), NoCheckpoint(tag));
    Say<absl::StatusOr<LoadedCheckpoint>>(std::move(done), LoadedCheckpoint{CheckpointOf(tag, sequence), {}});
  }
  void OpenCheckpoint(std::string tag, int64_t sequence,
                      ckptd::Callback<absl::StatusOr<std::shared_ptr<CheckpointReader>>> done) override {
    using Result = absl::StatusOr<std::shared_ptr<CheckpointReader>>;
    if (!Has(tag, sequence)) return Say<Result>(std::move(done), NoCheckpoint(tag));
    Say<Result>(std::move(done), std::make_shared<Reader>(CheckpointOf(tag, sequence).summary, readers_));
  }

  // In the record of the run, which each node sees.
  void SetPinned(std::string, int64_t sequence, bool pinned, ckptd::Callback<absl::Status> done) override {
    if (!pin_error.ok()) return Say(std::move(done), pin_error);
    if (pinned) root_.pinned.insert(sequence);
    if (!pinned) root_.pinned.erase(sequence);
    Say(std::move(done), absl::OkStatus());
  }

  // ---- as the coordinator
  void BeginTerm(int64_t term, ckptd::Callback<absl::Status> done) override {
    coordinator_->BeginTerm(term, std::move(done));
  }
  void MakeInflight(const std::string& tag, int64_t sequence,
                    ckptd::Callback<absl::StatusOr<std::string>> done) override {
    coordinator_->MakeInflight(tag, sequence, std::move(done));
  }
  void FindReplaced(const Publication& publication, ckptd::Callback<absl::StatusOr<Replaced>> done) override {
    coordinator_->FindReplaced(publication, std::move(done));
  }
  void Find(const SharedInflight& save, ckptd::Callback<absl::StatusOr<SharedPlace>> done) override {
    coordinator_->Find(save, std::move(done));
  }
  void Publish(const Publication& publication, ckptd::Callback<absl::StatusOr<Published>> done) override {
    coordinator_->Publish(publication, std::move(done));
  }
  void EndTerm() override { coordinator_->EndTerm(); }
  void CheckRemovable(const std::string& tag, int64_t sequence,
                      ckptd::Callback<absl::StatusOr<uint64_t>> done) override {
    coordinator_->CheckRemovable(tag, sequence, std::move(done));
  }
  void Remove(const std::string& tag, int64_t sequence, uint64_t inode,
              ckptd::Callback<absl::StatusOr<bool>> done) override {
    coordinator_->Remove(tag, sequence, inode, std::move(done));
  }
  void Sweep(int64_t last, const std::set<int64_t>& unfinished, ckptd::Callback<absl::Status> done) override {
    coordinator_->Sweep(last, unfinished, std::move(done));
  }

  // ---- what no test needs
  void SetDamage(std::string, int64_t, std::optional<storage::v1::Damage>,
                 ckptd::Callback<absl::StatusOr<PointerFiles>> done) override {
    Say<absl::StatusOr<PointerFiles>>(std::move(done), Unused());
  }
  void ReleasePointers(std::string, int64_t, ckptd::Callback<absl::StatusOr<PointerFiles>> done) override {
    Say<absl::StatusOr<PointerFiles>>(std::move(done), Unused());
  }
  void ReadBack(std::shared_ptr<CheckpointReader>, std::string, int64_t, int64_t,
                ckptd::Callback<absl::Status> done) override {
    Say(std::move(done), Unused());
  }
  void ReadFiles(std::shared_ptr<CheckpointReader>, std::vector<FileTarget>,
                 ckptd::Callback<absl::Status> done) override {
    Say(std::move(done), Unused());
  }
  void CheckImages(std::vector<FileImage>, std::vector<storage::v1::FileRecord>, int32_t,
                   ckptd::Callback<absl::Status> done) override {
    Say(std::move(done), Unused());
  }
  void ListForeign(ckptd::Callback<absl::StatusOr<std::vector<ForeignCheckpoint>>> done) override {
    Say<absl::StatusOr<std::vector<ForeignCheckpoint>>>(std::move(done), Unused());
  }
  void SurveyForeign(std::string, uid_t, int32_t, std::shared_ptr<SurveyProgress>,
                     ckptd::Callback<absl::StatusOr<ForeignSurvey>> done) override {
    Say<absl::StatusOr<ForeignSurvey>>(std::move(done), Unused());
  }
  std::optional<Instant> pending_since() const override { return hangs_since_; }
  bool has_pending() const override { return false; }

 private:
  class Reader : public CheckpointReader {
   public:
    Reader(storage::v1::ManifestSummary summary, std::shared_ptr<int> readers)
        : readers_(std::move(readers)) {
      manifest_.summary = std::move(summary);
      ++*readers_;
    }
    ~Reader() override { --*readers_; }
    const Manifest& manifest() const override { return manifest_; }
    absl::Status Read(const std::string&, int64_t, std::span<std::byte>) override { return Unused(); }

   private:
    Manifest manifest_;
    const std::shared_ptr<int> readers_;
  };

  static absl::Status Unused() { return absl::UnimplementedError("not in this fake"); }
  static absl::Status NoCheckpoint(const std::string& tag) {
    return MakeError(absl::StatusCode::kNotFound, reason::kNoCheckpoint, tag);
  }
  bool Has(const std::string& tag, int64_t sequence) const {
    const auto found = root_.tags.find(tag);
    return found != root_.tags.end() && found->second == sequence;
  }
  CommittedCheckpoint CheckpointOf(const std::string& tag, int64_t sequence) const {
    CommittedCheckpoint checkpoint;
    checkpoint.summary.set_tag(tag);
    checkpoint.summary.set_sequence(sequence);
    if (const auto found = root_.attempts.find(sequence); found != root_.attempts.end())
      checkpoint.summary.set_attempt(found->second);
    checkpoint.pinned = root_.pinned.contains(sequence);
    if (root_.suspect.contains(sequence)) checkpoint.summary.set_suspect("a loss that is not finite");
    if (const auto found = root_.damaged.find(sequence); found != root_.damaged.end()) {
      checkpoint.damage.emplace();
      checkpoint.damage->set_tag(tag);
      checkpoint.damage->set_sequence(sequence);
      checkpoint.damage->set_message(found->second);
    }
    return checkpoint;
  }
  absl::StatusOr<RootSnapshot> Snapshot() const {
    RootSnapshot snapshot;
    snapshot.highest_term = root_.highest_term;
    for (const auto& [tag, sequence] : root_.tags) {
      if (root_.hidden.contains(sequence)) continue;
      snapshot.committed[sequence] = CheckpointOf(tag, sequence);
      snapshot.highest_sequence = std::max(snapshot.highest_sequence, sequence);
    }
    for (const auto& [tag, sequence] : root_.half_removed)
      snapshot.half_removed.push_back({tag, sequence, root_.InodeOf(sequence)});
    return snapshot;
  }
  template <typename T>
  void Say(ckptd::Callback<T> done, T result) {
    after_(std::chrono::milliseconds(1), [this, alive = std::weak_ptr<bool>(alive_), done = std::move(done),
                                          result = std::move(result)]() mutable {
      if (alive.expired()) return;
      hang_.Deliver([this, alive, done = std::move(done), result = std::move(result)]() mutable {
        if (alive.expired()) return;
        pause_->Deliver([alive, done = std::move(done), result = std::move(result)]() mutable {
          if (!alive.expired()) done(std::move(result));
        });
      });
    });
  }

  FakeSharedRoot& root_;
  Pause* const pause_;
  const FakeSharedRoot::After after_;
  const std::string run_id_;
  Pause hang_;
  std::optional<Instant> hangs_since_;
  const std::unique_ptr<SharedRootIo> coordinator_;
  const std::shared_ptr<int> readers_ = std::make_shared<int>(0);
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace ckptd
#endif  // CKPTD_TESTS_TESTING_FAKE_SHARED_FILES_H_
