#include "daemon/root_io/threaded_root_io.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <atomic>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/root_io/common/disk_checkpoint_reader.h"
#include "daemon/root_io/common/disk_root_io.h"
#include "daemon/root_io/common/part_record.h"
#include "daemon/root_io/common/unchanged_files.h"
#include "daemon/root_io/local/empty_trash.h"
#include "daemon/root_io/local/threaded_root.h"
#include "daemon/root_io/threads/file_system_workers.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/commit/checkpoint/checkpoint_dir.h"
#include "storage/commit/checkpoint/scan.h"
#include "storage/commit/checkpoint/verify.h"
#include "storage/commit/local/root_store.h"
#include "storage/format/names.h"

namespace ckptd {

class ThreadedRootIoFactory::Io : public DiskRootIo<LocalRootIo, ThreadedRoot> {
 public:
  using DiskRootIo::DiskRootIo;

  void Open(Callback<absl::StatusOr<RootSnapshot>> done) override {
    Ask(std::move(done), [workers = threads_.metadata, options = threads_.options, clock = threads_.clock](
                             ThreadedRoot& root) { return OpenRoot(root, *workers, options, clock); });
  }

  void CheckTarget(std::string tag, std::vector<std::string> pointers, Callback<absl::Status> done) override {
    Query(std::move(done),
          [tag = std::move(tag), pointers = std::move(pointers)](ThreadedRoot& root) -> absl::Status {
            CKPTD_RETURN_IF_ERROR(CheckTag(tag));
            CKPTD_ASSIGN_OR_RETURN(const Target target, InspectTarget(*root.fs, root.dir.get(), tag));
            if (target.kind == TargetKind::kForeign) return TagForeignError(tag, target.what);
            return CheckPointerTargets(*root.fs, root.dir.get(), pointers);
          });
  }

  void CreateInflight(InflightId64 id, std::string tag, int64_t sequence, int64_t manifest_bytes,
                      Callback<absl::Status> done) override {
    Ask(std::move(done),
        [id, tag = std::move(tag), sequence, manifest_bytes](ThreadedRoot& root) -> absl::Status {
          if (root.store == nullptr) return RootNotOpen();
          CKPTD_ASSIGN_OR_RETURN(Inflight inflight,
                                 root.store->CreateInflight(tag, sequence, manifest_bytes));
          root.inflight.insert_or_assign(id, std::move(inflight));
          return absl::OkStatus();
        });
  }

  void WritePart(InflightId64 id, storage::v1::PartRecord record, std::vector<FileImage> files,
                 std::shared_ptr<CheckpointReader> base, std::shared_ptr<std::atomic<int64_t>> written_bytes,
                 Callback<absl::StatusOr<storage::v1::PartRecord>> done) override;

  void Publish(InflightId64 id, storage::v1::ManifestSummary summary,
               std::vector<storage::v1::PartRecord> parts, Callback<PublishResult> done) override {
    Ask(std::move(done),
        [id, summary = std::move(summary), parts = std::move(parts)](ThreadedRoot& root) -> PublishResult {
          absl::StatusOr<Inflight*> inflight = root.Find(id);
          if (!inflight.ok()) return {PublishOutcome::kFailed, inflight.status()};
          PublishResult result = root.store->Publish(**inflight, summary, parts);
          if (result.outcome != PublishOutcome::kFailed)
            root.inflight.erase(id);  // The directory is renamed to its tag.
          return result;
        });
  }

  void Discard(InflightId64 id, Callback<absl::Status> done) override {
    Ask(std::move(done), [id](ThreadedRoot& root) -> absl::Status {
      CKPTD_ASSIGN_OR_RETURN(Inflight * inflight, root.Find(id));
      const absl::Status discarded = root.store->Discard(*inflight);
      // If the root is read-only, the engine asks again after the next scan. Otherwise that scan removes what
      // is left.
      if (ReasonOf(discarded) != "ROOT_READ_ONLY") root.inflight.erase(id);
      return discarded;
    });
  }

  void Evict(std::string tag, int64_t sequence, Callback<absl::Status> done) override {
    AskStore(std::move(done),
             [tag = std::move(tag), sequence](RootStore& store) { return store.Evict(tag, sequence); });
  }

  void EmptyTrash(TrashTerms terms, Callback<absl::StatusOr<TrashLeft>> done) override {
    EmptyTrashOf(root_, threads_.metadata, threads_.scrubber, terms, answers_.To(std::move(done)));
  }

  void ListTrash(Callback<absl::StatusOr<std::vector<TrashedCheckpoint>>> done) override {
    AskStore(std::move(done), [](RootStore& store) { return store.ListTrash(); });
  }

  void Undelete(std::string tag, int64_t sequence, Callback<absl::StatusOr<Undeleted>> done) override {
    AskStore(std::move(done),
             [tag = std::move(tag), sequence](RootStore& store) { return store.Undelete(tag, sequence); });
  }

  void SaveRunRecord(storage::v1::RunRecord record, Callback<absl::Status> done) override {
    AskStore(std::move(done),
             [record = std::move(record)](RootStore& store) { return store.SaveRunRecord(record); });
  }

  void SetPinned(std::string tag, int64_t sequence, bool pinned, Callback<absl::Status> done) override {
    AskStore(std::move(done), [tag = std::move(tag), sequence, pinned](RootStore& store) {
      return store.SetPinned(tag, sequence, pinned);
    });
  }

  void SetDamage(std::string tag, int64_t sequence, std::optional<storage::v1::Damage> damage,
                 Callback<absl::StatusOr<PointerFiles>> done) override {
    AskStore(std::move(done), [tag = std::move(tag), sequence, damage = std::move(damage)](RootStore& store) {
      return store.SetDamage(tag, sequence, damage);
    });
  }

  void ReleasePointers(std::string tag, int64_t sequence,
                       Callback<absl::StatusOr<PointerFiles>> done) override {
    AskStore(std::move(done), [tag = std::move(tag), sequence](RootStore& store) {
      return store.ReleasePointers(tag, sequence);
    });
  }

  void OpenCheckpoint(std::string tag, int64_t sequence,
                      Callback<absl::StatusOr<std::shared_ptr<CheckpointReader>>> done) override {
    Ask(std::move(done),
        [tag = std::move(tag),
         sequence](ThreadedRoot& root) -> absl::StatusOr<std::shared_ptr<CheckpointReader>> {
          if (root.store == nullptr) return RootNotOpen();
          CKPTD_ASSIGN_OR_RETURN(ScopedHandle dir, root.store->OpenCheckpoint(tag, sequence));
          CKPTD_ASSIGN_OR_RETURN(Manifest manifest, root.store->ReadManifest(tag, sequence));
          CKPTD_RETURN_IF_ERROR(CheckFiles(*root.fs, dir.get(), manifest.body.files()));
          return std::make_shared<DiskCheckpointReader>(
              root.fs, std::move(dir), root.manifests.Share(std::move(manifest)), root.readers);
        });
  }

  void Rescan(Callback<absl::StatusOr<RootSnapshot>> done) override {
    Ask(std::move(done),
        [workers = threads_.metadata,
         options = threads_.options](ThreadedRoot& root) -> absl::StatusOr<RootSnapshot> {
          if (root.store == nullptr) return RootNotOpen();
          CKPTD_RETURN_IF_ERROR(root.store->Rescan());
          return TakeSnapshot(root, *workers, options);
        });
  }

  void Adopt(ForeignSurvey survey, storage::v1::ManifestSummary summary,
             Callback<PublishResult> done) override {
    Ask(std::move(done),
        [survey = std::move(survey), summary = std::move(summary)](ThreadedRoot& root) -> PublishResult {
          if (root.store == nullptr) return {PublishOutcome::kFailed, RootNotOpen()};
          return root.store->Adopt(survey, summary);
        });
  }

 private:
  template <typename T, typename Operation>
  void AskStore(Callback<T> done, Operation operation) {
    Ask(std::move(done), [operation = std::move(operation)](ThreadedRoot& root) -> T {
      if (root.store == nullptr) return RootNotOpen();
      return operation(*root.store);
    });
  }
};

void ThreadedRootIoFactory::Io::WritePart(InflightId64 id, storage::v1::PartRecord record,
                                          std::vector<FileImage> files,
                                          std::shared_ptr<CheckpointReader> base,
                                          std::shared_ptr<std::atomic<int64_t>> written_bytes,
                                          Callback<absl::StatusOr<storage::v1::PartRecord>> done) {
  if (written_bytes == nullptr) written_bytes = std::make_shared<std::atomic<int64_t>>(0);
  using Answerer = absl::AnyInvocable<void(absl::StatusOr<storage::v1::PartRecord>)>;
  // Step 3, on the metadata worker: write the part record, which marks the files as complete.
  auto remember = [id](ThreadedRoot& root, storage::v1::PartRecord part, int32_t chunk_bytes,
                       const std::vector<WrittenFile>& written) -> absl::StatusOr<storage::v1::PartRecord> {
    CKPTD_ASSIGN_OR_RETURN(Inflight * inflight, root.Find(id));
    part = PartRecordOf(std::move(part), chunk_bytes, written);
    CKPTD_RETURN_IF_ERROR(root.store->WritePartRecord(*inflight, part));
    return part;
  };
  // Step 1, on the metadata worker: make the directories, and the files that `base` has. Step 2, on the I/O
  // thread: write the other files.
  auto write = [root = root_, workers = threads_.metadata, id,
                chunk_bytes = threads_.options.writer.chunk_bytes, remember, record = std::move(record),
                files, written_bytes = std::move(written_bytes),
                answer = Answerer(answers_.To(std::move(done)))](UnchangedFiles unchanged) mutable {
    absl::StatusOr<Inflight*> inflight = root->Find(id);
    if (!inflight.ok()) return answer(inflight.status());
    std::vector<std::string> paths;
    for (const FileImage& file : files) paths.push_back(file.path);
    if (absl::Status made = root->store->MakeParents(**inflight, paths); !made.ok()) return answer(made);
    FileSystemWorkers& on = *workers;
    FileSystem* const fs = root->fs.get();
    const Handle dir = (*inflight)->dir.get();
    absl::StatusOr<std::vector<FileImage>> others =
        unchanged.Share(*fs, dir, std::move(files), written_bytes.get());
    if (!others.ok()) return answer(others.status());
    on.Write(fs, dir, *std::move(others), std::move(written_bytes),
             [root = std::move(root), workers = std::move(workers), chunk_bytes, remember,
              record = std::move(record), unchanged = std::move(unchanged),
              answer = std::move(answer)](absl::StatusOr<std::vector<WrittenFile>> written) mutable {
               if (!written.ok()) return answer(written.status());
               workers->PostUrgent([root = std::move(root), chunk_bytes, remember, record = std::move(record),
                                    answer = std::move(answer),
                                    all = std::move(unchanged).AllOf(*std::move(written))]() mutable {
                 answer(remember(*root, std::move(record), chunk_bytes, all));
               });
             });
  };
  AfterComparing(std::move(base), files, std::move(write));
}

// ---- ThreadedRootIoFactory

namespace {

constexpr int kSenders = 8;  // Ranks whose parts are sent to buckets at the same time.

// "8:1". AT_STATX_DONT_SYNC: does not ask a file server, which may not answer. If `root` is not a descriptor,
// the device is 0:0, and Open fails later.
std::string DeviceOf(const UniqueFd& root) {
  struct statx info {};
  statx(root.get(), "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, 0, &info);
  return absl::StrCat(info.stx_dev_major, ":", info.stx_dev_minor);
}

RootOpener OpenerOf(UniqueFd root, std::optional<FileUser> user) {
  return [given = std::move(root), user = std::move(user)]() -> absl::StatusOr<RootDirectory> {
    RootDirectory opened;
    CKPTD_ASSIGN_OR_RETURN(opened.fs, MakePosixFileSystem(user));
    CKPTD_ASSIGN_OR_RETURN(opened.handle, OpenScoped(*opened.fs, given.get(), ".", OpenMode::kDirectory));
    return opened;
  };
}

}  // namespace

ThreadedRootIoFactory::ThreadedRootIoFactory(ThreadedRootIoOptions options, Clock* clock, Post post)
    : options_(std::move(options)),
      clock_(clock),
      gate_(std::make_shared<EngineGate>(std::move(post))),
      checksums_(std::make_shared<ChecksumPool>(options_.checksum_threads)),
      checks_(std::make_shared<ChecksumPool>(CheckThreads())) {}

ThreadedRootIoFactory::~ThreadedRootIoFactory() { Close(std::chrono::seconds(5)); }

absl::StatusOr<std::unique_ptr<LocalRootIo>> ThreadedRootIoFactory::Make(UniqueFd root,
                                                                         std::optional<FileUser> user) {
  const std::string device = DeviceOf(root);
  return Make(device, OpenerOf(std::move(root), std::move(user)));
}

absl::StatusOr<std::unique_ptr<LocalRootIo>> ThreadedRootIoFactory::Make(const std::string& device,
                                                                         RootOpener open) {
  CKPTD_ASSIGN_OR_RETURN(RootThreads threads, ThreadsOf(device));
  return std::make_unique<Io>(std::move(threads), std::move(open));
}

absl::StatusOr<std::unique_ptr<SharedFilesIo>> ThreadedRootIoFactory::MakeShared(
    UniqueFd root, std::optional<FileUser> user, SharedRootIdentity identity) {
  const std::string device = DeviceOf(root);
  return MakeShared(device, OpenerOf(std::move(root), std::move(user)), std::move(identity));
}

absl::StatusOr<std::unique_ptr<SharedFilesIo>> ThreadedRootIoFactory::MakeShared(
    const std::string& device, RootOpener open, SharedRootIdentity identity) {
  CKPTD_ASSIGN_OR_RETURN(RootThreads threads, ThreadsOf(device));
  CKPTD_ASSIGN_OR_RETURN(threads.trials, WorkersOf("try-" + device));
  return MakeSharedDiskRootIo(std::move(threads), std::move(open), std::move(identity));
}

absl::StatusOr<std::unique_ptr<LocalRootIo>> ThreadedRootIoFactory::MakeBucket(BucketRoot root) {
  CKPTD_ASSIGN_OR_RETURN(RootThreads threads, ThreadsOf(root.url));
  if (senders_ == nullptr) senders_ = std::make_unique<WorkerPool>(kSenders);
  const auto send = [senders = senders_.get()](absl::AnyInvocable<void()> work) {
    senders->Submit(std::move(work));
  };
  return MakeBucketRootIo(std::move(threads), send, std::move(root));
}

absl::StatusOr<RootThreads> ThreadedRootIoFactory::ThreadsOf(const std::string& device) {
  DropUnused();
  RootThreads threads;
  threads.options = options_;
  threads.clock = clock_;
  threads.gate = gate_;
  threads.checks = checks_;
  threads.device = devices_[device].lock();
  if (threads.device == nullptr) devices_[device] = threads.device = std::make_shared<char>();
  CKPTD_ASSIGN_OR_RETURN(threads.metadata, WorkersOf(device));
  CKPTD_ASSIGN_OR_RETURN(threads.queries, WorkersOf("ask-" + device));
  CKPTD_ASSIGN_OR_RETURN(threads.scrubber, WorkersOf("scrub-" + device));
  return threads;
}

absl::StatusOr<std::shared_ptr<FileSystemWorkers>> ThreadedRootIoFactory::WorkersOf(const std::string& name) {
  auto found = workers_.find(name);
  if (found == workers_.end()) {
    CKPTD_ASSIGN_OR_RETURN(
        std::shared_ptr<FileSystemWorkers> workers,
        FileSystemWorkers::Start(name, options_.writer, checksums_, clock_, options_.queues));
    found = workers_.emplace(name, std::move(workers)).first;
  }
  return found->second;
}

// Ends the threads of file systems without a RootIo, after the work that is queued on them.
void ThreadedRootIoFactory::DropUnused() {
  std::erase_if(ending_, [](const auto& workers) { return workers->TryJoin(); });
  for (auto device = devices_.begin(); device != devices_.end();) {
    if (!device->second.expired()) {
      ++device;
      continue;
    }
    for (const char* prefix : {"", "ask-", "scrub-", "try-"}) {
      const auto found = workers_.find(prefix + device->first);
      if (found == workers_.end()) continue;
      found->second->BeginEnd();
      ending_.push_back(std::move(found->second));
      workers_.erase(found);
    }
    device = devices_.erase(device);
  }
}

std::vector<std::string> ThreadedRootIoFactory::Close(Duration timeout) {
  gate_->Close();
  for (const auto& [device, workers] : workers_) {
    workers->BeginEnd();
    ending_.push_back(workers);
  }
  workers_.clear();
  const Instant deadline = SystemClock().Now() + timeout;
  std::vector<std::string> hung;
  for (const auto& workers : ending_) {
    if (!workers->WaitEnded(deadline)) hung.push_back(workers->name());
  }
  ending_.clear();
  senders_.reset();  // Its requests are cancelled, and end within seconds.
  return hung;
}

}  // namespace ckptd
