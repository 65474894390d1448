// RootIo for the engine, in a run that several nodes share: what is read is known to the other nodes first,
// and what is removed was decided.
#ifndef CKPTD_DAEMON_CLUSTER_NODES_ROOT_IO_H_
#define CKPTD_DAEMON_CLUSTER_NODES_ROOT_IO_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/engine/seams/root_io.h"
#include "daemon/engine/seams/shared_files_io.h"
#include "storage/base/callback_scope.h"
#include "storage/base/clock.h"

namespace ckptd {

// What NodesRootIo asks of the nodes; NodesRun.
class NodesReading {
 public:
  virtual ~NodesReading() = default;
  // Whether the root is that of its run, as far as etcd says so now. ROOT_COPIED.
  virtual void CheckRoot(const SharedFilesIo::RunOfRoot& root, Callback<absl::Status> checked) = 0;
  // The root is open, and holds this run.
  virtual void Opened(const SharedFilesIo::RunOfRoot& root) = 0;
  // Remembers how far the run has come in the root. Takes out of what was found the checkpoints whose removal
  // is decided, and marks those that are damaged.
  virtual void ApplyDecided(RootSnapshot* root) = 0;
  // Whether what was found is older than what etcd calls committed, as it may be for as long as names are
  // stale: look again then. `begun`: when the look began, by Now(). False of a look that began after that
  // time, for then somebody has taken the checkpoint away.
  virtual bool IsOld(const RootSnapshot& root, Instant begun) = 0;
  virtual Instant Now() const = 0;
  // Runs it a little later.
  virtual void LookAgain(absl::AnyInvocable<void()> look) = 0;
  // As ReaderKeys.
  virtual void AcquireReader(int64_t sequence, Callback<absl::Status> acquired) = 0;
  // Between its OK and the release: that no removal of the checkpoint has been decided, in no registration of
  // this node.
  virtual void ConfirmReader(int64_t sequence, Callback<absl::Status> confirmed) = 0;
  // Whether its removal was decided and is over, so that a directory with its sequence is a copy that was put
  // back.
  virtual bool WasRemoved(int64_t sequence) const = 0;
  // On any thread.
  virtual std::function<void()> ReleaserOf(int64_t sequence) = 0;
  // Decides to remove the checkpoint, waits until no node reads it, and removes it. NOT_COORDINATOR.
  virtual void Evict(const std::string& tag, int64_t sequence, Callback<absl::Status> done) = 0;
};

// All other calls are those of the file system.
class NodesRootIo : public RootIo {
 public:
  explicit NodesRootIo(std::unique_ptr<SharedFilesIo> files)
      : files_owned_(std::move(files)), files_(*files_owned_) {}

  SharedFilesIo* files() { return &files_; }
  // Before the first call. `nodes` may end before this object, which is then only destroyed.
  void Connect(NodesReading* nodes) { nodes_ = nodes; }

  void Open(Callback<absl::StatusOr<RootSnapshot>> done) override;

  // BEING_REMOVED if that is decided.
  void OpenCheckpoint(std::string tag, int64_t sequence,
                      Callback<absl::StatusOr<std::shared_ptr<CheckpointReader>>> done) override;
  void Evict(std::string tag, int64_t sequence, Callback<absl::Status> done) override {
    nodes_->Evict(tag, sequence, std::move(done));
  }

  void CheckTarget(std::string tag, std::vector<std::string> pointers, Callback<absl::Status> done) override {
    files_.CheckTarget(std::move(tag), std::move(pointers), std::move(done));
  }
  void FreeBytes(Callback<absl::StatusOr<int64_t>> done) override { files_.FreeBytes(std::move(done)); }
  void CreateInflight(InflightId64 id, std::string tag, int64_t sequence, int64_t manifest_bytes,
                      Callback<absl::Status> done) override {
    files_.CreateInflight(id, std::move(tag), sequence, manifest_bytes, std::move(done));
  }
  void WritePart(InflightId64 id, storage::v1::PartRecord record, std::vector<FileImage> files,
                 std::shared_ptr<std::atomic<int64_t>> written_bytes,
                 Callback<absl::StatusOr<storage::v1::PartRecord>> done) override {
    files_.WritePart(id, std::move(record), std::move(files), std::move(written_bytes), std::move(done));
  }
  void Publish(InflightId64 id, storage::v1::ManifestSummary summary,
               std::vector<storage::v1::PartRecord> parts, Callback<PublishResult> done) override {
    static_cast<RootIo&>(files_).Publish(id, std::move(summary), std::move(parts), std::move(done));
  }
  void Discard(InflightId64 id, Callback<absl::Status> done) override { files_.Discard(id, std::move(done)); }
  void EmptyTrash(TrashTerms terms, Callback<absl::StatusOr<TrashLeft>> done) override {
    files_.EmptyTrash(terms, std::move(done));
  }
  void ListTrash(Callback<absl::StatusOr<std::vector<TrashedCheckpoint>>> done) override {
    files_.ListTrash(std::move(done));
  }
  void Undelete(std::string tag, int64_t sequence, Callback<absl::StatusOr<Undeleted>> done) override {
    files_.Undelete(std::move(tag), sequence, std::move(done));
  }
  void SaveRunRecord(storage::v1::RunRecord record, Callback<absl::Status> done) override {
    files_.SaveRunRecord(std::move(record), std::move(done));
  }
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
  void Adopt(ForeignSurvey survey, storage::v1::ManifestSummary summary,
             Callback<PublishResult> done) override {
    files_.Adopt(std::move(survey), std::move(summary), std::move(done));
  }
  std::optional<Instant> pending_since() const override { return files_.pending_since(); }
  bool has_pending() const override { return opening_ > 0 || scanning_ > 0 || files_.has_pending(); }

 private:
  void Look(Callback<absl::StatusOr<RootSnapshot>> done);
  // Answers with the error of opening a checkpoint, unless etcd shows after the error that it is being
  // removed.
  void Explain(int64_t sequence, const absl::Status& error, const std::function<void()>& release,
               Callback<absl::StatusOr<std::shared_ptr<CheckpointReader>>> answer);

  const std::unique_ptr<SharedFilesIo> files_owned_;
  SharedFilesIo& files_;
  NodesReading* nodes_ = nullptr;
  int opening_ = 0;   // OpenCheckpoint was not answered,
  int scanning_ = 0;  // and neither was Rescan.
  CallbackScope callbacks_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_CLUSTER_NODES_ROOT_IO_H_
