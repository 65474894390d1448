#include "daemon/root_io/threaded_root_io.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/root_io/disk_checkpoint_reader.h"
#include "daemon/root_io/empty_trash.h"
#include "daemon/root_io/file_system_workers.h"
#include "daemon/root_io/threaded_root.h"
#include "storage/base/errors.h"
#include "storage/base/mutex.h"
#include "storage/base/status_macros.h"
#include "storage/commit/checkpoint_dir.h"
#include "storage/commit/foreign.h"
#include "storage/commit/root_store.h"
#include "storage/commit/scan.h"
#include "storage/commit/verify.h"
#include "storage/format/names.h"
#include "storage/io/check_images.h"

namespace ckptd {

// Posts callbacks to the engine's thread until it is closed. Thread-safe.
class ThreadedRootIoFactory::Gate {
 public:
  explicit Gate(Post post) : post_(std::move(post)) {}
  void Send(absl::AnyInvocable<void()> work) {
    MutexLock lock(mutex_);
    if (post_) post_(std::move(work));
  }
  void Close() {
    MutexLock lock(mutex_);
    post_ = nullptr;
  }

 private:
  Mutex mutex_;
  Post post_ ABSL_GUARDED_BY(mutex_);
};

class ThreadedRootIoFactory::Io : public RootIo {
 public:
  Io(const ThreadedRootIoOptions& options, Clock* clock, std::shared_ptr<Gate> gate,
     std::shared_ptr<char> device, std::shared_ptr<FileSystemWorkers> workers,
     std::shared_ptr<FileSystemWorkers> query_workers, std::shared_ptr<FileSystemWorkers> scrubber,
     std::shared_ptr<ChecksumPool> checksums, OpenRootDirectory open)
      : options_(options),
        clock_(clock),
        gate_(std::move(gate)),
        device_(std::move(device)),
        workers_(std::move(workers)),
        query_workers_(std::move(query_workers)),
        scrubber_(std::move(scrubber)),
        checksums_(std::move(checksums)) {
    root_->open_directory = std::move(open);
  }

  ~Io() override {
    root_->abandoned.store(true);
    std::atomic_ref(root_->stop).store(1);
    // On the metadata worker, because closing a directory may wait for its file system.
    workers_->PostUrgent([root = std::move(root_)]() mutable { root.reset(); });
  }

  void Open(Callback<absl::StatusOr<RootSnapshot>> done) override {
    Ask(std::move(done), [workers = workers_, options = options_, clock = clock_](ThreadedRoot& root) {
      return OpenRoot(root, *workers, options, clock);
    });
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

  void FreeBytes(Callback<absl::StatusOr<int64_t>> done) override {
    Query(std::move(done), [](ThreadedRoot& root) -> absl::StatusOr<int64_t> {
      CKPTD_ASSIGN_OR_RETURN(const SpaceInfo space, root.fs->Space(root.dir.get()));
      return space.free_bytes;
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
                 std::shared_ptr<std::atomic<int64_t>> written_bytes,
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
    EmptyTrashOf(root_, workers_, scrubber_, terms, Answer(std::move(done)));
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
        [workers = workers_, options = options_](ThreadedRoot& root) -> absl::StatusOr<RootSnapshot> {
          if (root.store == nullptr) return RootNotOpen();
          CKPTD_RETURN_IF_ERROR(root.store->Rescan());
          return TakeSnapshot(root, *workers, options);
        });
  }

  void ReadBack(std::shared_ptr<CheckpointReader> reader, std::string path, int64_t offset, int64_t size,
                Callback<absl::Status> done) override {
    scrubber_->PostIdle([reader = std::move(reader), path = std::move(path), offset, size,
                         answer = Answer(std::move(done))]() mutable {
      std::vector<std::byte> bytes(static_cast<size_t>(size));
      const absl::Status read = reader->Read(path, offset, bytes);
      reader.reset();
      answer(read);
    });
  }

  void ReadFiles(std::shared_ptr<CheckpointReader> reader, std::vector<FileTarget> files,
                 Callback<absl::Status> done) override {
    scrubber_->PostUrgent([root = root_, reader = std::move(reader), files = std::move(files),
                           answer = Answer(std::move(done))]() mutable {
      absl::Status read;
      for (const FileTarget& file : files) {
        if (read.ok()) read = static_cast<const DiskCheckpointReader&>(*reader).ReadWhole(file, &root->stop);
      }
      reader.reset();
      answer(read);
    });
  }

  void CheckImages(std::vector<FileImage> images, std::vector<storage::v1::FileRecord> records,
                   int32_t chunk_bytes, Callback<absl::Status> done) override {
    ckptd::CheckImages(
        checksums_.get(), std::move(images), std::move(records), chunk_bytes,
        [root = root_] { return root->abandoned.load(); }, Answer(std::move(done)));
  }

  void ListForeign(Callback<absl::StatusOr<std::vector<ForeignCheckpoint>>> done) override {
    scrubber_->PostUrgent([root = root_, answer = Answer(std::move(done))]() mutable {
      if (!root->open.load()) return answer(RootNotOpen());
      answer(ckptd::ListForeign(*root->fs, root->dir.get()));
    });
  }

  void SurveyForeign(std::string tag, uid_t owner, int32_t chunk_bytes,
                     std::shared_ptr<SurveyProgress> progress,
                     Callback<absl::StatusOr<ForeignSurvey>> done) override {
    auto begin = [root = root_, scrubber = scrubber_, tag = std::move(tag), owner, chunk_bytes,
                  progress = std::move(progress), answer = Answer(std::move(done))]() mutable {
      if (!root->open.load()) return answer(RootNotOpen());
      auto reader = std::make_unique<ForeignReader>(root->fs.get(), root->dir.get(), std::move(tag), owner,
                                                    chunk_bytes, std::move(progress));
      SurveyStep(std::move(root), std::move(scrubber), std::move(reader), std::move(answer));
    };
    scrubber_->PostIdle(std::move(begin));
  }

  void Adopt(ForeignSurvey survey, storage::v1::ManifestSummary summary,
             Callback<PublishResult> done) override {
    Ask(std::move(done),
        [survey = std::move(survey), summary = std::move(summary)](ThreadedRoot& root) -> PublishResult {
          if (root.store == nullptr) return {PublishOutcome::kFailed, RootNotOpen()};
          return root.store->Adopt(survey, summary);
        });
  }

  std::optional<Instant> pending_since() const override {
    const std::optional<Instant> work = workers_->pending_since(), query = query_workers_->pending_since();
    return work && query ? std::min(*work, *query) : work ? work : query;
  }
  bool has_pending() const override { return *pending_ > 0; }

 private:
  // Returns a callback for any thread that runs `done` on the engine's thread, unless this object is gone by
  // then.
  template <typename T>
  absl::AnyInvocable<void(T)> Answer(Callback<T> done) {
    ++*pending_;
    return [gate = gate_, pending = std::weak_ptr<int>(pending_), done = std::move(done)](T result) mutable {
      gate->Send(
          [pending = std::move(pending), done = std::move(done), result = std::move(result)]() mutable {
            if (const std::shared_ptr<int> alive = pending.lock()) {
              --*alive;
              done(std::move(result));
            }
          });
    };
  }

  // Runs `operation` with the root on the metadata worker; `done` gets its result.
  template <typename T, typename Operation>
  void Ask(Callback<T> done, Operation operation) {
    workers_->PostUrgent([root = root_, answer = Answer(std::move(done)),
                          operation = std::move(operation)]() mutable { answer(operation(*root)); });
  }

  // Like Ask, on the thread for queries, so that a Begin need not wait behind a commit's syncs. Fails unless
  // the root is open. `operation` may use `fs` and `dir` only.
  template <typename T, typename Operation>
  void Query(Callback<T> done, Operation operation) {
    query_workers_->PostUrgent(
        [root = root_, answer = Answer(std::move(done)), operation = std::move(operation)]() mutable {
          if (!root->open.load()) return answer(RootNotOpen());
          answer(operation(*root));
        });
  }

  template <typename T, typename Operation>
  void AskStore(Callback<T> done, Operation operation) {
    Ask(std::move(done), [operation = std::move(operation)](ThreadedRoot& root) -> T {
      if (root.store == nullptr) return RootNotOpen();
      return operation(*root.store);
    });
  }

  // Surveys a foreign checkpoint in steps, so that other work of the scrub thread waits for one step at most.
  static void SurveyStep(std::shared_ptr<ThreadedRoot> root, std::shared_ptr<FileSystemWorkers> scrubber,
                         std::unique_ptr<ForeignReader> reader,
                         absl::AnyInvocable<void(absl::StatusOr<ForeignSurvey>)> answer) {
    FileSystemWorkers& on = *scrubber;
    on.PostIdle([root = std::move(root), scrubber = std::move(scrubber), reader = std::move(reader),
                 answer = std::move(answer)]() mutable {
      if (root->abandoned.load()) return;
      const absl::StatusOr<bool> more = reader->Step();
      if (!more.ok()) return answer(more.status());
      if (!*more) return answer(reader->Take());
      SurveyStep(std::move(root), std::move(scrubber), std::move(reader), std::move(answer));
    });
  }

  const ThreadedRootIoOptions options_;
  Clock* const clock_;
  const std::shared_ptr<Gate> gate_;
  const std::shared_ptr<char> device_;  // Keeps the threads of the file system alive.
  const std::shared_ptr<FileSystemWorkers> workers_;
  const std::shared_ptr<FileSystemWorkers> query_workers_;
  const std::shared_ptr<FileSystemWorkers> scrubber_;
  const std::shared_ptr<ChecksumPool> checksums_;
  std::shared_ptr<ThreadedRoot> root_ = std::make_shared<ThreadedRoot>();
  // Number of callbacks that have not run. Used on the engine's thread; dropped with this object.
  const std::shared_ptr<int> pending_ = std::make_shared<int>(0);
};

void ThreadedRootIoFactory::Io::WritePart(InflightId64 id, storage::v1::PartRecord record,
                                          std::vector<FileImage> files,
                                          std::shared_ptr<std::atomic<int64_t>> written_bytes,
                                          Callback<absl::StatusOr<storage::v1::PartRecord>> done) {
  if (written_bytes == nullptr) written_bytes = std::make_shared<std::atomic<int64_t>>(0);
  using Answerer = absl::AnyInvocable<void(absl::StatusOr<storage::v1::PartRecord>)>;
  // Step 3, on the metadata worker: write the part record, which says that the files are complete.
  auto remember = [id](ThreadedRoot& root, storage::v1::PartRecord part, int32_t chunk_bytes,
                       const std::vector<WrittenFile>& written) -> absl::StatusOr<storage::v1::PartRecord> {
    CKPTD_ASSIGN_OR_RETURN(Inflight * inflight, root.Find(id));
    part.clear_files();
    part.set_chunk_bytes(chunk_bytes);
    for (const WrittenFile& file : written) {
      storage::v1::FileRecord& entry = *part.add_files();
      entry.set_path(file.path);
      entry.set_size_bytes(file.size);
      entry.set_rank(part.rank());
      entry.mutable_chunk_crc32c()->Add(file.chunk_crc32c.begin(), file.chunk_crc32c.end());
    }
    CKPTD_RETURN_IF_ERROR(root.store->WritePartRecord(*inflight, part));
    return part;
  };
  // Step 1, on the metadata worker: make the directories. Step 2, on the I/O thread: write the files.
  workers_->PostUrgent([root = root_, workers = workers_, id, chunk_bytes = options_.writer.chunk_bytes,
                        remember, record = std::move(record), files = std::move(files),
                        written_bytes = std::move(written_bytes),
                        answer = Answerer(Answer(std::move(done)))]() mutable {
    absl::StatusOr<Inflight*> inflight = root->Find(id);
    if (!inflight.ok()) return answer(inflight.status());
    std::vector<std::string> paths;
    for (const FileImage& file : files) paths.push_back(file.path);
    if (absl::Status made = root->store->MakeParents(**inflight, paths); !made.ok()) return answer(made);
    FileSystemWorkers& on = *workers;
    FileSystem* const fs = root->fs.get();
    on.Write(fs, (*inflight)->dir.get(), std::move(files), std::move(written_bytes),
             [root = std::move(root), workers = std::move(workers), chunk_bytes, remember,
              record = std::move(record),
              answer = std::move(answer)](absl::StatusOr<std::vector<WrittenFile>> written) mutable {
               if (!written.ok()) return answer(written.status());
               workers->PostUrgent([root = std::move(root), chunk_bytes, remember, record = std::move(record),
                                    answer = std::move(answer), written = *std::move(written)]() mutable {
                 answer(remember(*root, std::move(record), chunk_bytes, written));
               });
             });
  });
}

// ---- ThreadedRootIoFactory

ThreadedRootIoFactory::ThreadedRootIoFactory(ThreadedRootIoOptions options, Clock* clock, Post post)
    : options_(std::move(options)),
      clock_(clock),
      gate_(std::make_shared<Gate>(std::move(post))),
      checksums_(std::make_shared<ChecksumPool>(options_.checksum_threads)) {}

ThreadedRootIoFactory::~ThreadedRootIoFactory() { Close(std::chrono::seconds(5)); }

absl::StatusOr<std::unique_ptr<RootIo>> ThreadedRootIoFactory::Make(UniqueFd root,
                                                                    std::optional<FileUser> user) {
  // AT_STATX_DONT_SYNC: does not ask a file server, which may not answer. If `root` is not a descriptor, the
  // device is 0:0, and Open fails later.
  struct statx info {};
  statx(root.get(), "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, 0, &info);
  const std::string device = absl::StrCat(info.stx_dev_major, ":", info.stx_dev_minor);
  return Make(device, [given = std::move(root), user = std::move(user)]() -> absl::StatusOr<RootDirectory> {
    RootDirectory opened;
    CKPTD_ASSIGN_OR_RETURN(opened.fs, MakePosixFileSystem(user));
    CKPTD_ASSIGN_OR_RETURN(opened.handle, OpenScoped(*opened.fs, given.get(), ".", OpenMode::kDirectory));
    return opened;
  });
}

absl::StatusOr<std::unique_ptr<RootIo>> ThreadedRootIoFactory::Make(const std::string& device,
                                                                    OpenRootDirectory open) {
  DropUnused();
  std::shared_ptr<char> in_use = devices_[device].lock();
  if (in_use == nullptr) devices_[device] = in_use = std::make_shared<char>();
  CKPTD_ASSIGN_OR_RETURN(std::shared_ptr<FileSystemWorkers> work, WorkersOf(device));
  CKPTD_ASSIGN_OR_RETURN(std::shared_ptr<FileSystemWorkers> query_workers, WorkersOf("ask-" + device));
  CKPTD_ASSIGN_OR_RETURN(std::shared_ptr<FileSystemWorkers> scrubber, WorkersOf("scrub-" + device));
  return std::make_unique<Io>(options_, clock_, gate_, std::move(in_use), std::move(work),
                              std::move(query_workers), std::move(scrubber), checksums_, std::move(open));
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
    for (const char* prefix : {"", "ask-", "scrub-"}) {
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
  return hung;
}

}  // namespace ckptd
