// RootIo for the engine, in a run that several nodes share: writes a reader key before it opens a checkpoint,
// and removes a checkpoint only by a decision in etcd.
#ifndef CKPTD_DAEMON_CLUSTER_NODES_ROOT_IO_H_
#define CKPTD_DAEMON_CLUSTER_NODES_ROOT_IO_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/engine/seams/coordinator_io.h"
#include "daemon/engine/seams/root_io.h"
#include "daemon/engine/seams/shared_files_io.h"
#include "storage/base/callback_scope.h"
#include "storage/base/clock.h"

namespace ckptd {

// The calls of NodesRootIo to NodesRun.
class NodesReading {
 public:
  virtual ~NodesReading() = default;
  // ROOT_COPIED if etcd has another directory as the root of this run. OK if etcd does not answer.
  virtual void CheckRoot(const SharedFilesIo::RunOfRoot& root, Callback<absl::Status> checked) = 0;
  // The root is open, and holds this run.
  virtual void Opened(const SharedFilesIo::RunOfRoot& root) = 0;
  // Remembers the highest sequence, term and attempt in the root. Takes the checkpoints whose removal is
  // decided out of `root`, and marks those that are damaged.
  virtual void ApplyDecided(RootSnapshot* root) = 0;
  // Whether the scan lacks a committed checkpoint because names may be stale: scan again then. `begun`: when
  // the scan began, by Now(). False if names could no longer be stale then: another program has removed the
  // checkpoint.
  virtual bool IsStale(const RootSnapshot& root, Instant begun) = 0;
  virtual Instant Now() const = 0;
  // Runs `look` a little later.
  virtual void CallLater(absl::AnyInvocable<void()> look) = 0;
  // Runs `answer` when this call has returned.
  virtual void Post(absl::AnyInvocable<void()> answer) = 0;
  // As ReaderKeys::Acquire.
  virtual void AcquireReader(int64_t sequence, Callback<absl::Status> acquired) = 0;
  // Called between the OK of AcquireReader and the release. OK: no removal of the checkpoint has been
  // decided, even if this node has lost its registration meanwhile.
  virtual void ConfirmReader(int64_t sequence, Callback<absl::Status> confirmed) = 0;
  // Whether the removal of the checkpoint was decided and is over, so that a directory with its sequence is a
  // copy that was put back.
  virtual bool WasRemoved(int64_t sequence) const = 0;
  // Returns a function that releases the reader, and that may be called on any thread.
  virtual std::function<void()> ReleaserOf(int64_t sequence) = 0;
  // Once no node reads the checkpoint, decides to remove it, and removes it. NOT_COORDINATOR.
  virtual void Evict(const std::string& tag, int64_t sequence, Callback<absl::Status> done) = 0;
};

// All calls that are not implemented here go to the file system.
class NodesRootIo : public RootIo, public CoordinatorIo {
 public:
  explicit NodesRootIo(std::unique_ptr<SharedFilesIo> files)
      : files_owned_(std::move(files)), files_(*files_owned_) {}

  SharedFilesIo* files() { return &files_; }
  // Call it before any other call. `nodes` may end before this object, if this object is then only destroyed.
  void Connect(NodesReading* nodes) { nodes_ = nodes; }

  void Open(Callback<absl::StatusOr<RootSnapshot>> done) override;

  // BEING_REMOVED if the removal of the checkpoint is decided.
  void OpenCheckpoint(std::string tag, int64_t sequence,
                      Callback<absl::StatusOr<std::shared_ptr<CheckpointReader>>> done) override;

  void Evict(std::string tag, int64_t sequence, Callback<absl::Status> done) override {
    nodes_->Evict(tag, sequence, std::move(done));
  }
  // There is no trash yet: Evict removes the files, too. Undelete and Adopt: SHARED_ROOT_UNSUPPORTED.
  void EmptyTrash(TrashTerms terms, Callback<absl::StatusOr<TrashLeft>> done) override;
  void ListTrash(Callback<absl::StatusOr<std::vector<TrashedCheckpoint>>> done) override;
  void Undelete(std::string tag, int64_t sequence, Callback<absl::StatusOr<Undeleted>> done) override;
  void Adopt(ForeignSurvey survey, storage::v1::ManifestSummary summary,
             Callback<PublishResult> done) override;

  void CheckTarget(std::string tag, std::vector<std::string> pointers, Callback<absl::Status> done) override {
    files_.CheckTarget(std::move(tag), std::move(pointers), std::move(done));
  }
  void FreeBytes(Callback<absl::StatusOr<int64_t>> done) override { files_.FreeBytes(std::move(done)); }
  void WritePart(InflightId64 id, storage::v1::PartRecord record, std::vector<FileImage> files,
                 std::shared_ptr<CheckpointReader> base, std::shared_ptr<std::atomic<int64_t>> written_bytes,
                 Callback<absl::StatusOr<storage::v1::PartRecord>> done) override {
    files_.WritePart(id, std::move(record), std::move(files), std::move(base), std::move(written_bytes),
                     std::move(done));
  }
  void Discard(InflightId64 id, Callback<absl::Status> done) override { files_.Discard(id, std::move(done)); }
  void SetPinned(std::string tag, int64_t sequence, bool pinned, Callback<absl::Status> done) override {
    files_.SetPinned(std::move(tag), sequence, pinned, std::move(done));
  }
  void SetDamage(std::string tag, int64_t sequence, std::optional<storage::v1::Damage> damage,
                 Callback<absl::StatusOr<PointerFiles>> done) override {
    files_.SetDamage(std::move(tag), sequence, std::move(damage), std::move(done));
  }
  void ReleasePointers(std::string tag, int64_t sequence,
                       Callback<absl::StatusOr<PointerFiles>> done) override {
    files_.ReleasePointers(std::move(tag), sequence, std::move(done));
  }
  void Rescan(Callback<absl::StatusOr<RootSnapshot>> done) override;
  void ReadBack(std::shared_ptr<CheckpointReader> reader, std::string path, int64_t offset, int64_t size,
                Callback<absl::Status> done) override {
    files_.ReadBack(std::move(reader), std::move(path), offset, size, std::move(done));
  }
  void ReadFiles(std::shared_ptr<CheckpointReader> reader, std::vector<FileTarget> files,
                 Callback<absl::Status> done) override {
    files_.ReadFiles(std::move(reader), std::move(files), std::move(done));
  }
  void CheckImages(std::vector<FileImage> images, std::vector<storage::v1::FileRecord> records,
                   int32_t chunk_bytes, Callback<absl::Status> done) override {
    files_.CheckImages(std::move(images), std::move(records), chunk_bytes, std::move(done));
  }
  void ListForeign(Callback<absl::StatusOr<std::vector<ForeignCheckpoint>>> done) override {
    files_.ListForeign(std::move(done));
  }
  void SurveyForeign(std::string tag, uid_t owner, int32_t chunk_bytes,
                     std::shared_ptr<SurveyProgress> progress,
                     Callback<absl::StatusOr<ForeignSurvey>> done) override {
    files_.SurveyForeign(std::move(tag), owner, chunk_bytes, std::move(progress), std::move(done));
  }
  std::optional<Instant> pending_since() const override { return files_.pending_since(); }
  bool has_pending() const override { return opening_ > 0 || scanning_ > 0 || files_.has_pending(); }

 private:
  void Look(Callback<absl::StatusOr<RootSnapshot>> done);
  template <typename T>
  void Answer(Callback<T> done, T result) {
    nodes_->Post(callbacks_.Guard(
        [done = std::move(done), result = std::move(result)]() mutable { done(std::move(result)); }));
  }
  // Answers with the error of opening a checkpoint; with BEING_REMOVED if etcd shows after the error that the
  // checkpoint is being removed.
  void Explain(int64_t sequence, const absl::Status& error, const std::function<void()>& release,
               Callback<absl::StatusOr<std::shared_ptr<CheckpointReader>>> answer);

  const std::unique_ptr<SharedFilesIo> files_owned_;
  SharedFilesIo& files_;
  NodesReading* nodes_ = nullptr;
  int opening_ = 0;   // Calls of OpenCheckpoint without an answer.
  int scanning_ = 0;  // Calls of Rescan without an answer.
  CallbackScope callbacks_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_CLUSTER_NODES_ROOT_IO_H_
