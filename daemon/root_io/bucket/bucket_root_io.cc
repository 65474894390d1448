#include "daemon/root_io/bucket/bucket_root_io.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "daemon/root_io/bucket/bucket_checkpoint_reader.h"
#include "daemon/root_io/common/disk_checkpoint_reader.h"
#include "daemon/root_io/common/opened_root.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"
#include "storage/base/status_macros.h"
#include "storage/commit/bucket/bucket_root_store.h"
#include "storage/io/check_images.h"
#include "storage/object/bucket_url.h"

namespace ckptd {
namespace {

using storage::v1::Damage;
using storage::v1::ManifestSummary;
using storage::v1::PartRecord;

// Of one request with all of its tries. Ranks wait for those of the first kind, and are told the store's
// error.
constexpr Duration kQuickLimit = std::chrono::seconds(20);
constexpr Duration kLimit = std::chrono::seconds(60);
constexpr int64_t kNoLimitBytes = int64_t{1} << 60;

absl::Status NotInABucket(const std::string& what) {
  return MakeError(absl::StatusCode::kFailedPrecondition, "ROOT_UNSUITABLE",
                   absl::StrCat("a root in a bucket has no ", what));
}

// What the threads of one root share.
struct State {
  explicit State(BucketRoot bucket) : given(std::move(bucket)) {}

  const BucketRoot given;
  std::atomic<bool> abandoned = false;  // Its RootIo is destroyed: requests end.
  std::atomic<bool> taken_over = false;
  std::atomic<bool> open = false;  // From then on the next three do not change.
  std::shared_ptr<ObjectStore> store, quick;
  std::unique_ptr<BucketRootStore> root;
  std::string prefix;
  const std::shared_ptr<OpenReaders> readers = std::make_shared<OpenReaders>();

  // Used on the metadata worker only.
  std::map<InflightId64, std::shared_ptr<BucketSave>> inflight;
  OpenManifests manifests;

  absl::StatusOr<std::shared_ptr<BucketSave>> Find(InflightId64 id) const {
    if (!open) return RootNotOpen();
    const auto found = inflight.find(id);
    if (found == inflight.end()) return absl::NotFoundError(absl::StrCat("no save has the number ", id));
    return found->second;
  }
};

TransferOptions TransferOf(const BucketRoot& root) {
  TransferOptions transfer;
  transfer.threads = root.parallel_parts;
  return transfer;
}

ProbeResult Probe() {
  ProbeResult probe;
  probe.file_system = "s3";
  probe.io_backend = "requests";
  probe.io_backend_cause = "the root is in a bucket";
  probe.direct_io = probe.fallocate = probe.rename_exchange = probe.rename_noreplace = true;
  probe.directory_sync = probe.locks = true;
  probe.free_bytes = kNoLimitBytes;
  return probe;
}

RootSnapshot SnapshotOf(const State& state) {
  BucketRootStore::Contents contents = state.root->contents();
  RootSnapshot snapshot;
  snapshot.probe = Probe();
  snapshot.recovered = std::move(contents.recovered);
  snapshot.committed = std::move(contents.committed);
  snapshot.damaged = std::move(contents.damaged);
  snapshot.run_record = std::move(contents.run_record);
  snapshot.run_record.set_uid(static_cast<int32_t>(state.given.uid));
  snapshot.highest_sequence = contents.highest_sequence;
  snapshot.trash_bytes = contents.removing_bytes;
  return snapshot;
}

absl::StatusOr<RootSnapshot> Open(State& state, const std::shared_ptr<FileSystemWorkers>& metadata,
                                  Clock* clock, const std::weak_ptr<State>& self) {
  CKPTD_ASSIGN_OR_RETURN(const BucketUrl url, ParseBucketUrl(state.given.url));
  // A worker that is to end has no time for tries.
  const auto is_cancelled = [self, workers = std::weak_ptr<FileSystemWorkers>(metadata)] {
    const std::shared_ptr<State> root = self.lock();
    const std::shared_ptr<FileSystemWorkers> on = workers.lock();
    return root == nullptr || root->abandoned || on == nullptr || on->ending();
  };
  CKPTD_ASSIGN_OR_RETURN(state.store, state.given.open(url.bucket, kLimit, is_cancelled));
  CKPTD_ASSIGN_OR_RETURN(state.quick, state.given.open(url.bucket, kQuickLimit, is_cancelled));
  state.prefix = url.prefix;
  CKPTD_ASSIGN_OR_RETURN(state.root,
                         BucketRootStore::Open(state.store.get(), state.quick.get(), clock,
                                               {url.prefix, state.given.owner, TransferOf(state.given)}));
  state.open = true;
  return SnapshotOf(state);
}

const absl::Status& StatusOf(const absl::Status& status) { return status; }
const absl::Status& StatusOf(const PublishResult& result) { return result.status; }
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

class BucketRootIo : public LocalRootIo {
 public:
  BucketRootIo(RootThreads threads, RunBlocking senders, BucketRoot root)
      : threads_(std::move(threads)),
        senders_(std::move(senders)),
        answers_(threads_.gate),
        state_(std::make_shared<State>(std::move(root))) {}
  ~BucketRootIo() override {
    state_->abandoned = true;
    // Elsewhere, because connections are closed.
    threads_.metadata->PostUrgent([state = std::move(state_)]() mutable { state.reset(); });
  }

  std::string why_one_node() const override {
    return absl::StrCat(
        "a root in a bucket, such as ", state_->given.url,
        ", is of one node: use a folder that the nodes share as the root, with an upload to the bucket");
  }
  bool is_taken_over() const override { return state_->taken_over; }

  void Open(Callback<absl::StatusOr<RootSnapshot>> done) override {
    On(threads_.metadata, std::move(done),
       [metadata = threads_.metadata, clock = threads_.clock,
        self = std::weak_ptr<State>(state_)](State& state) -> absl::StatusOr<RootSnapshot> {
         if (state.open) return SnapshotOf(state);
         return ckptd::Open(state, metadata, clock, self);
       });
  }
  void Rescan(Callback<absl::StatusOr<RootSnapshot>> done) override {
    Ask(std::move(done), [](State& state) -> absl::StatusOr<RootSnapshot> {
      CKPTD_RETURN_IF_ERROR(state.root->Rescan());
      RootSnapshot snapshot = SnapshotOf(state);
      snapshot.recovered.clear();  // They were told when it was opened.
      return snapshot;
    });
  }

  void CheckTarget(std::string tag, std::vector<std::string> pointers, Callback<absl::Status> done) override {
    On(threads_.queries, std::move(done),
       [tag = std::move(tag), pointers = std::move(pointers)](State& state) -> absl::Status {
         if (!state.open) return RootNotOpen();
         if (!pointers.empty()) return NotInABucket(absl::StrCat("pointer files, such as ", pointers[0]));
         return state.root->CheckTarget(tag);
       });
  }
  void FreeBytes(Callback<absl::StatusOr<int64_t>> done) override {
    threads_.queries->PostUrgent(
        [answer = answers_.To(std::move(done))]() mutable { answer(kNoLimitBytes); });
  }

  void CreateInflight(InflightId64 id, std::string tag, int64_t sequence, int64_t /*manifest_bytes*/,
                      Callback<absl::Status> done) override {
    Ask(std::move(done), [id, tag = std::move(tag), sequence](State& state) -> absl::Status {
      CKPTD_ASSIGN_OR_RETURN(state.inflight[id], state.root->Begin(tag, sequence));
      return absl::OkStatus();
    });
  }
  void WritePart(InflightId64 id, PartRecord record, std::vector<FileImage> files,
                 std::shared_ptr<CheckpointReader> /*base*/,
                 std::shared_ptr<std::atomic<int64_t>> written_bytes,
                 Callback<absl::StatusOr<PartRecord>> done) override {
    if (written_bytes == nullptr) written_bytes = std::make_shared<std::atomic<int64_t>>(0);
    // The metadata worker knows the save; the part is sent by another thread.
    threads_.metadata->PostUrgent([state = state_, senders = senders_, id, record = std::move(record),
                                   files = std::move(files), written_bytes = std::move(written_bytes),
                                   chunk_bytes = threads_.options.writer.chunk_bytes,
                                   answer = answers_.To(std::move(done))]() mutable {
      absl::StatusOr<std::shared_ptr<BucketSave>> save = state->Find(id);
      if (!save.ok()) return answer(save.status());
      senders([state = std::move(state), save = *std::move(save), record = std::move(record),
               files = std::move(files), written_bytes = std::move(written_bytes), chunk_bytes,
               answer = std::move(answer)]() mutable {
        absl::StatusOr<PartRecord> written =
            state->root->WritePart(*save, std::move(record), files, chunk_bytes, written_bytes.get());
        files.clear();
        answer(std::move(written));
      });
    });
  }
  void Publish(InflightId64 id, ManifestSummary summary, std::vector<PartRecord> parts,
               Callback<PublishResult> done) override {
    On(threads_.metadata, std::move(done),
       [id, summary = std::move(summary), parts = std::move(parts)](State& state) -> PublishResult {
         const absl::StatusOr<std::shared_ptr<BucketSave>> save = state.Find(id);
         if (!save.ok()) return {PublishOutcome::kFailed, save.status()};
         PublishResult result = state.root->Publish(**save, summary, parts);
         if (result.outcome == PublishOutcome::kCommitted) state.inflight.erase(id);
         return result;
       });
  }
  void Discard(InflightId64 id, Callback<absl::Status> done) override {
    On(threads_.metadata, std::move(done), [id](State& state) -> absl::Status {
      CKPTD_ASSIGN_OR_RETURN(const std::shared_ptr<BucketSave> save, state.Find(id));
      state.inflight.erase(id);
      // What could not be removed is removed later, and no daemon takes it for a checkpoint: nothing to wait
      // for.
      state.root->Discard(*save).IgnoreError();
      if (!save->has_replaced) return absl::OkStatus();
      return absl::AbortedError(
          "it had taken the place of a checkpoint that was damaged or suspect: listing again");
    });
  }

  void Evict(std::string tag, int64_t sequence, Callback<absl::Status> done) override {
    Ask(std::move(done),
        [tag = std::move(tag), sequence](State& state) { return state.root->Evict(tag, sequence); });
  }
  void EmptyTrash(TrashTerms /*terms*/, Callback<absl::StatusOr<TrashLeft>> done) override {
    RemoveLeft(state_, threads_.scrubber, answers_.To(std::move(done)));
  }
  void ListTrash(Callback<absl::StatusOr<std::vector<TrashedCheckpoint>>> done) override {
    Ask(std::move(done), [](State&) -> absl::StatusOr<std::vector<TrashedCheckpoint>> {
      return std::vector<TrashedCheckpoint>();
    });
  }
  void Undelete(std::string tag, int64_t /*sequence*/, Callback<absl::StatusOr<Undeleted>> done) override {
    Ask(std::move(done), [tag = std::move(tag)](State&) -> absl::StatusOr<Undeleted> {
      return MakeError(absl::StatusCode::kNotFound, reason::kNoCheckpoint,
                       absl::StrCat("a root in a bucket has no trash: what was removed there, such as ", tag,
                                    ", does not come back"),
                       {{"tag", tag}});
    });
  }
  void Adopt(ForeignSurvey /*survey*/, ManifestSummary /*summary*/, Callback<PublishResult> done) override {
    On(threads_.metadata, std::move(done), [](State&) -> PublishResult {
      return {PublishOutcome::kFailed, NotInABucket("checkpoints to adopt")};
    });
  }
  void SaveRunRecord(storage::v1::RunRecord record, Callback<absl::Status> done) override {
    Ask(std::move(done),
        [record = std::move(record)](State& state) { return state.root->SaveRunRecord(record); });
  }
  void SetPinned(std::string tag, int64_t sequence, bool pinned, Callback<absl::Status> done) override {
    Ask(std::move(done), [tag = std::move(tag), sequence, pinned](State& state) {
      return state.root->SetPinned(tag, sequence, pinned);
    });
  }
  void SetDamage(std::string tag, int64_t sequence, std::optional<Damage> damage,
                 Callback<absl::StatusOr<PointerFiles>> done) override {
    Ask(std::move(done),
        [tag = std::move(tag), sequence,
         damage = std::move(damage)](State& state) -> absl::StatusOr<PointerFiles> {
          CKPTD_RETURN_IF_ERROR(state.root->SetDamage(tag, sequence, damage));
          return PointerFiles{};
        });
  }
  void ReleasePointers(std::string /*tag*/, int64_t /*sequence*/,
                       Callback<absl::StatusOr<PointerFiles>> done) override {
    Ask(std::move(done), [](State&) -> absl::StatusOr<PointerFiles> { return PointerFiles{}; });
  }

  void OpenCheckpoint(std::string tag, int64_t sequence,
                      Callback<absl::StatusOr<std::shared_ptr<CheckpointReader>>> done) override {
    Ask(std::move(done),
        [tag = std::move(tag), sequence](State& state) -> absl::StatusOr<std::shared_ptr<CheckpointReader>> {
          CKPTD_ASSIGN_OR_RETURN(Manifest manifest, state.root->OpenCheckpoint(tag, sequence));
          return std::make_shared<BucketCheckpointReader>(
              state.store, BucketKeys(state.prefix), TransferOf(state.given),
              state.manifests.Share(std::move(manifest)), state.readers);
        });
  }
  void ReadBack(std::shared_ptr<CheckpointReader> reader, std::string path, int64_t offset, int64_t size,
                Callback<absl::Status> done) override {
    threads_.scrubber->PostIdle([reader = std::move(reader), path = std::move(path), offset, size,
                                 answer = answers_.To(std::move(done))]() mutable {
      std::vector<std::byte> bytes(static_cast<size_t>(size));
      const absl::Status read = reader->Read(path, offset, bytes);
      reader.reset();
      answer(read);
    });
  }
  void ReadFiles(std::shared_ptr<CheckpointReader> reader, std::vector<FileTarget> files,
                 Callback<absl::Status> done) override {
    threads_.scrubber->PostUrgent([reader = std::move(reader), files = std::move(files),
                                   answer = answers_.To(std::move(done))]() mutable {
      const absl::Status read = static_cast<BucketCheckpointReader&>(*reader).ReadWhole(files);
      reader.reset();
      answer(read);
    });
  }
  void CheckImages(std::vector<FileImage> images, std::vector<storage::v1::FileRecord> records,
                   int32_t chunk_bytes, Callback<absl::Status> done) override {
    ckptd::CheckImages(
        threads_.checks.get(), CheckThreads(), std::move(images), std::move(records), chunk_bytes,
        [state = state_] { return state->abandoned.load(); }, answers_.To(std::move(done)));
  }

  void ListForeign(Callback<absl::StatusOr<std::vector<ForeignCheckpoint>>> done) override {
    Ask(std::move(done), [](State&) -> absl::StatusOr<std::vector<ForeignCheckpoint>> {
      return std::vector<ForeignCheckpoint>();
    });
  }
  void SurveyForeign(std::string /*tag*/, uid_t /*owner*/, int32_t /*chunk_bytes*/,
                     std::shared_ptr<SurveyProgress> /*progress*/,
                     Callback<absl::StatusOr<ForeignSurvey>> done) override {
    Ask(std::move(done),
        [](State&) -> absl::StatusOr<ForeignSurvey> { return NotInABucket("checkpoints to adopt"); });
  }

  std::optional<Instant> pending_since() const override {
    const std::optional<Instant> work = threads_.metadata->pending_since();
    const std::optional<Instant> query = threads_.queries->pending_since();
    return work && query ? std::min(*work, *query) : work ? work : query;
  }
  bool has_pending() const override { return answers_.has_pending(); }

 private:
  // Runs `operation` with the state on `worker`; `done` gets its result.
  template <typename T, typename Operation>
  void On(const std::shared_ptr<FileSystemWorkers>& worker, Callback<T> done, Operation operation) {
    worker->PostUrgent(
        [state = state_, answer = answers_.To(std::move(done)), operation = std::move(operation)]() mutable {
          T result = operation(*state);
          if (ReasonOf(StatusOf(result)) == "ROOT_TAKEN_OVER") state->taken_over = true;
          answer(std::move(result));
        });
  }
  // On the metadata worker. Fails unless the root is open.
  template <typename T, typename Operation>
  void Ask(Callback<T> done, Operation operation) {
    On(threads_.metadata, std::move(done), [operation = std::move(operation)](State& state) mutable -> T {
      if (!state.open) return RootNotOpen();
      return operation(state);
    });
  }

  // One checkpoint after the other, so that other work of the scrubber waits for one at most.
  static void RemoveLeft(const std::shared_ptr<State>& state,
                         const std::shared_ptr<FileSystemWorkers>& scrubber,
                         absl::AnyInvocable<void(absl::StatusOr<TrashLeft>)> answer) {
    scrubber->PostIdle([state, scrubber, answer = std::move(answer)]() mutable {
      if (state->abandoned) return;
      if (!state->open) return answer(RootNotOpen());
      const std::vector<int64_t> open = state->readers->Sequences();
      const absl::StatusOr<bool> more = state->root->RemoveLeft({open.begin(), open.end()});
      if (!more.ok()) return answer(more.status());
      if (*more) return RemoveLeft(state, scrubber, std::move(answer));
      answer(TrashLeft{.bytes = state->root->contents().removing_bytes});
    });
  }

  const RootThreads threads_;
  const RunBlocking senders_;
  RootAnswers answers_;
  std::shared_ptr<State> state_;
};

}  // namespace

std::unique_ptr<LocalRootIo> MakeBucketRootIo(RootThreads threads, RunBlocking senders, BucketRoot root) {
  return std::make_unique<BucketRootIo>(std::move(threads), std::move(senders), std::move(root));
}

}  // namespace ckptd
