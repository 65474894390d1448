#include "daemon/root_io/threaded_root_io.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/root_io/file_system_workers.h"
#include "google/protobuf/util/message_differencer.h"
#include "storage/base/errors.h"
#include "storage/base/mutex.h"
#include "storage/base/status_macros.h"
#include "storage/commit/checkpoint_dir.h"
#include "storage/commit/disk_file.h"
#include "storage/commit/foreign.h"
#include "storage/commit/root_store.h"
#include "storage/commit/scan.h"
#include "storage/commit/verify.h"
#include "storage/format/names.h"
#include "storage/io/check_images.h"

namespace ckptd {
namespace {

absl::Status NotOpen() {
  return MakeError(absl::StatusCode::kFailedPrecondition, "ROOT_UNREADABLE", "the root is not open");
}

// Sequences of which a reader is open. Thread-safe.
class OpenReaders {
 public:
  void Add(int64_t sequence) {
    MutexLock lock(mutex_);
    open_.insert(sequence);
  }
  void Remove(int64_t sequence) {
    MutexLock lock(mutex_);
    open_.erase(open_.find(sequence));
  }
  std::vector<int64_t> Sequences() const {
    MutexLock lock(mutex_);
    return {open_.begin(), open_.end()};
  }

 private:
  mutable Mutex mutex_;
  std::multiset<int64_t> open_ ABSL_GUARDED_BY(mutex_);
};

// Whether two manifests with the same summary list the same files.
bool SameFiles(const Manifest& a, const Manifest& b) {
  const auto& files = a.body.files();
  return std::equal(files.begin(), files.end(), b.body.files().begin(), b.body.files().end(),
                    [](const storage::v1::FileRecord& x, const storage::v1::FileRecord& y) {
                      return x.path() == y.path() && x.size_bytes() == y.size_bytes() &&
                             x.rank() == y.rank() &&
                             std::equal(x.chunk_crc32c().begin(), x.chunk_crc32c().end(),
                                        y.chunk_crc32c().begin(), y.chunk_crc32c().end());
                    });
}

// The manifests of open readers, each once: all ranks of a job open the same checkpoint.
class OpenManifests {
 public:
  // `manifest`, or the same one that a reader has already.
  std::shared_ptr<const Manifest> Share(Manifest manifest) {
    std::erase_if(open_, [](const auto& entry) { return entry.second.expired(); });
    std::weak_ptr<const Manifest>& known = open_[manifest.summary.sequence()];
    const std::shared_ptr<const Manifest> open = known.lock();
    if (open != nullptr &&
        google::protobuf::util::MessageDifferencer::Equals(open->summary, manifest.summary) &&
        SameFiles(*open, manifest)) {
      return open;
    }
    auto fresh = std::make_shared<const Manifest>(std::move(manifest));
    known = fresh;
    return fresh;
  }

 private:
  std::map<int64_t, std::weak_ptr<const Manifest>> open_;  // By sequence.
};

// Of the metadata worker; but once it is `open`, `fs` and `dir` do not change, and others may use them, too.
struct Root {
  ThreadedRootIoFactory::OpenRootDirectory open_directory;
  std::atomic<bool> abandoned{false};  // Its RootIo is gone.
  int32_t stop = 0;                    // Then, too: not 0, for reads that take long. Atomic.
  std::atomic<bool> open{false};
  std::shared_ptr<FileSystem> fs;
  ScopedHandle dir;
  std::map<InflightId64, Inflight> inflight;
  std::unique_ptr<RootStore> store;
  OpenManifests manifests;
  const std::shared_ptr<OpenReaders> readers = std::make_shared<OpenReaders>();

  absl::StatusOr<Inflight*> Find(InflightId64 id) {
    auto found = inflight.find(id);
    if (store == nullptr) return NotOpen();
    if (found == inflight.end())
      return absl::NotFoundError(absl::StrCat("nothing in flight has the number ", id));
    return &found->second;
  }
};

RootSnapshot SnapshotOf(RootStore& store, const ProbeResult& probe) {
  RootSnapshot snapshot;
  snapshot.probe = probe;
  snapshot.recovered = store.recovered();
  snapshot.committed = store.committed();
  snapshot.damaged = store.damaged();
  snapshot.pointers = store.pointers();
  snapshot.run_record = store.run_record();
  snapshot.highest_sequence = store.highest_sequence();
  snapshot.trash_bytes = store.trash_bytes();
  snapshot.foreign = store.foreign();
  return snapshot;
}

class Reader : public CheckpointReader {
 public:
  Reader(std::shared_ptr<FileSystem> fs, ScopedHandle dir, std::shared_ptr<const Manifest> manifest,
         std::shared_ptr<OpenReaders> readers)
      : fs_(std::move(fs)),
        dir_(std::move(dir)),
        manifest_(std::move(manifest)),
        readers_(std::move(readers)) {
    readers_->Add(manifest_->summary.sequence());
  }
  ~Reader() override { readers_->Remove(manifest_->summary.sequence()); }

  const Manifest& manifest() const override { return *manifest_; }

  absl::Status Read(const std::string& path, int64_t offset, std::span<std::byte> into) override {
    CKPTD_ASSIGN_OR_RETURN(const storage::v1::FileRecord* const file, Find(path));
    return ReadVerified(*fs_, dir_.get(), *file, manifest_->summary.chunk_bytes(), offset, into);
  }

  absl::Status ReadWhole(const FileTarget& target, const int32_t* stop) const {
    CKPTD_ASSIGN_OR_RETURN(const storage::v1::FileRecord* const file, Find(target.path));
    const int threads = std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 2, 1, 8);
    return ReadFromDisk(*fs_, dir_.get(), *file, manifest_->summary.chunk_bytes(), 0, target.runs, threads,
                        stop);
  }

 private:
  absl::StatusOr<const storage::v1::FileRecord*> Find(const std::string& path) const {
    const auto& files = manifest_->body.files();  // Ordered by path.
    const auto found =
        std::lower_bound(files.begin(), files.end(), path,
                         [](const auto& file, const std::string& name) { return file.path() < name; });
    if (found == files.end() || found->path() != path) {
      return MakeError(absl::StatusCode::kNotFound, "UNKNOWN_FILE",
                       absl::StrCat("checkpoint ", manifest_->summary.tag(), " has no file ", path),
                       {{"tag", manifest_->summary.tag()}, {"path", path}});
    }
    return &*found;
  }

  const std::shared_ptr<FileSystem> fs_;
  const ScopedHandle dir_;
  const std::shared_ptr<const Manifest> manifest_;
  const std::shared_ptr<OpenReaders> readers_;
};

}  // namespace

// Where callbacks leave for the engine, until it is closed.
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
     std::shared_ptr<FileSystemWorkers> questions, std::shared_ptr<FileSystemWorkers> scrubber,
     std::shared_ptr<ChecksumPool> checksums, OpenRootDirectory open)
      : options_(options),
        clock_(clock),
        gate_(std::move(gate)),
        device_(std::move(device)),
        workers_(std::move(workers)),
        questions_(std::move(questions)),
        scrubber_(std::move(scrubber)),
        checksums_(std::move(checksums)) {
    root_->open_directory = std::move(open);
  }

  ~Io() override {
    root_->abandoned.store(true);
    std::atomic_ref(root_->stop).store(1);
    // Closing a directory may wait for its file system, too.
    workers_->PostUrgent([root = std::move(root_)]() mutable { root.reset(); });
  }

  void Open(Callback<absl::StatusOr<RootSnapshot>> done) override {
    Ask(std::move(done), [workers = workers_, options = options_, clock = clock_](Root& root) {
      return OpenRoot(root, *workers, options, clock);
    });
  }

  void CheckTarget(std::string tag, std::vector<std::string> pointers, Callback<absl::Status> done) override {
    Question(std::move(done),
             [tag = std::move(tag), pointers = std::move(pointers)](Root& root) -> absl::Status {
               CKPTD_RETURN_IF_ERROR(CheckTag(tag));
               CKPTD_ASSIGN_OR_RETURN(const Target target, InspectTarget(*root.fs, root.dir.get(), tag));
               if (target.kind == TargetKind::kForeign) return TagForeignError(tag, target.what);
               return CheckPointerTargets(*root.fs, root.dir.get(), pointers);
             });
  }

  void FreeBytes(Callback<absl::StatusOr<int64_t>> done) override {
    Question(std::move(done), [](Root& root) -> absl::StatusOr<int64_t> {
      CKPTD_ASSIGN_OR_RETURN(const SpaceInfo space, root.fs->Space(root.dir.get()));
      return space.free_bytes;
    });
  }

  void CreateInflight(InflightId64 id, std::string tag, int64_t sequence, int64_t manifest_bytes,
                      Callback<absl::Status> done) override {
    Ask(std::move(done), [id, tag = std::move(tag), sequence, manifest_bytes](Root& root) -> absl::Status {
      if (root.store == nullptr) return NotOpen();
      CKPTD_ASSIGN_OR_RETURN(Inflight inflight, root.store->CreateInflight(tag, sequence, manifest_bytes));
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
        [id, summary = std::move(summary), parts = std::move(parts)](Root& root) -> PublishResult {
          absl::StatusOr<Inflight*> inflight = root.Find(id);
          if (!inflight.ok()) return {PublishOutcome::kFailed, inflight.status()};
          PublishResult result = root.store->Publish(**inflight, summary, parts);
          if (result.outcome != PublishOutcome::kFailed) root.inflight.erase(id);  // It has its own name now.
          return result;
        });
  }

  void Discard(InflightId64 id, Callback<absl::Status> done) override {
    Ask(std::move(done), [id](Root& root) -> absl::Status {
      CKPTD_ASSIGN_OR_RETURN(Inflight * inflight, root.Find(id));
      const absl::Status discarded = root.store->Discard(*inflight);
      // Asked for again after the scan when the root is read-only; else what is left is the scan's.
      if (ReasonOf(discarded) != "ROOT_READ_ONLY") root.inflight.erase(id);
      return discarded;
    });
  }

  void Evict(std::string tag, int64_t sequence, Callback<absl::Status> done) override {
    AskStore(std::move(done),
             [tag = std::move(tag), sequence](RootStore& store) { return store.Evict(tag, sequence); });
  }

  void EmptyTrash(Callback<absl::StatusOr<int64_t>> done) override {
    EmptyStep(root_, workers_, scrubber_, Answer(std::move(done)));
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

  void OpenCheckpoint(std::string tag, int64_t sequence,
                      Callback<absl::StatusOr<std::shared_ptr<CheckpointReader>>> done) override {
    Ask(std::move(done),
        [tag = std::move(tag), sequence](Root& root) -> absl::StatusOr<std::shared_ptr<CheckpointReader>> {
          if (root.store == nullptr) return NotOpen();
          CKPTD_ASSIGN_OR_RETURN(ScopedHandle dir, root.store->OpenCheckpoint(tag, sequence));
          CKPTD_ASSIGN_OR_RETURN(Manifest manifest, root.store->ReadManifest(tag, sequence));
          CKPTD_RETURN_IF_ERROR(CheckFiles(*root.fs, dir.get(), manifest.body.files()));
          return std::make_shared<Reader>(root.fs, std::move(dir), root.manifests.Share(std::move(manifest)),
                                          root.readers);
        });
  }

  void Rescan(Callback<absl::StatusOr<RootSnapshot>> done) override {
    Ask(std::move(done),
        [workers = workers_, options = options_](Root& root) -> absl::StatusOr<RootSnapshot> {
          if (root.store == nullptr) return NotOpen();
          CKPTD_RETURN_IF_ERROR(root.store->Rescan());
          return Snapshot(root, *workers, options);
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
        if (read.ok()) read = static_cast<const Reader&>(*reader).ReadWhole(file, &root->stop);
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
      if (!root->open.load()) return answer(NotOpen());
      answer(ckptd::ListForeign(*root->fs, root->dir.get()));
    });
  }

  void SurveyForeign(std::string tag, uid_t owner, int32_t chunk_bytes,
                     std::shared_ptr<SurveyProgress> progress,
                     Callback<absl::StatusOr<ForeignSurvey>> done) override {
    auto begin = [root = root_, scrubber = scrubber_, tag = std::move(tag), owner, chunk_bytes,
                  progress = std::move(progress), answer = Answer(std::move(done))]() mutable {
      if (!root->open.load()) return answer(NotOpen());
      auto reader = std::make_unique<ForeignReader>(root->fs.get(), root->dir.get(), std::move(tag), owner,
                                                    chunk_bytes, std::move(progress));
      SurveyStep(std::move(root), std::move(scrubber), std::move(reader), std::move(answer));
    };
    scrubber_->PostIdle(std::move(begin));
  }

  void Adopt(ForeignSurvey survey, storage::v1::ManifestSummary summary,
             Callback<PublishResult> done) override {
    Ask(std::move(done),
        [survey = std::move(survey), summary = std::move(summary)](Root& root) -> PublishResult {
          if (root.store == nullptr) return {PublishOutcome::kFailed, NotOpen()};
          return root.store->Adopt(survey, summary);
        });
  }

  std::optional<Instant> pending_since() const override {
    const std::optional<Instant> work = workers_->pending_since(), question = questions_->pending_since();
    return work && question ? std::min(*work, *question) : work ? work : question;
  }
  bool has_pending() const override { return *pending_ > 0; }

 private:
  // What calls `done` on the engine's thread, from any other; not any more when this is gone.
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

  // `done` gets what `operation` returns, which is called with the Root on the metadata worker.
  template <typename T, typename Operation>
  void Ask(Callback<T> done, Operation operation) {
    workers_->PostUrgent([root = root_, answer = Answer(std::move(done)),
                          operation = std::move(operation)]() mutable { answer(operation(*root)); });
  }

  // The same on a thread of its own, for what Begin must know: it does not stand behind a commit's syncs.
  // Only once the root is open; touches nothing but `fs` and `dir`.
  template <typename T, typename Operation>
  void Question(Callback<T> done, Operation operation) {
    questions_->PostUrgent(
        [root = root_, answer = Answer(std::move(done)), operation = std::move(operation)]() mutable {
          if (!root->open.load()) return answer(NotOpen());
          answer(operation(*root));
        });
  }

  template <typename T, typename Operation>
  void AskStore(Callback<T> done, Operation operation) {
    Ask(std::move(done), [operation = std::move(operation)](Root& root) -> T {
      if (root.store == nullptr) return NotOpen();
      return operation(*root.store);
    });
  }

  static absl::StatusOr<RootSnapshot> OpenRoot(Root& root, FileSystemWorkers& workers,
                                               const ThreadedRootIoOptions& options, Clock* clock) {
    if (root.store == nullptr) {
      root.dir.reset();  // Of an attempt that failed.
      CKPTD_ASSIGN_OR_RETURN(RootDirectory opened, root.open_directory());
      root.fs = std::move(opened.fs);
      root.dir = std::move(opened.handle);
      const RootStoreOptions store_options = {
          .node = options.node, .io_backend = options.backend, .queues = options.queues};
      CKPTD_ASSIGN_OR_RETURN(root.store,
                             RootStore::Open(root.fs.get(), root.dir.get(), clock, store_options));
    }
    absl::StatusOr<RootSnapshot> snapshot = Snapshot(root, workers, options);
    if (!snapshot.ok()) root.store.reset();
    root.open.store(root.store != nullptr);
    return snapshot;
  }

  static absl::StatusOr<RootSnapshot> Snapshot(Root& root, FileSystemWorkers& workers,
                                               const ThreadedRootIoOptions& options) {
    ProbeResult probe = root.store->probe();
    CKPTD_RETURN_IF_ERROR(workers.StartIo(options.backend, probe));
    return SnapshotOf(*root.store, probe);
  }

  // One step at a time. The metadata worker only says what is next: a step may take a second for each GiB,
  // and neither a commit nor an open waits for it. Removing goes to the thread that reads back.
  static void EmptyStep(std::shared_ptr<Root> root, std::shared_ptr<FileSystemWorkers> workers,
                        std::shared_ptr<FileSystemWorkers> scrubber,
                        absl::AnyInvocable<void(absl::StatusOr<int64_t>)> answer) {
    FileSystemWorkers& on = *workers;
    on.PostIdle([root = std::move(root), workers = std::move(workers), scrubber = std::move(scrubber),
                 answer = std::move(answer)]() mutable {
      if (root->abandoned.load()) return;
      if (root->store == nullptr) return answer(NotOpen());
      absl::StatusOr<std::optional<std::string>> next = root->store->NextInTrash(root->readers->Sequences());
      if (!next.ok()) return answer(next.status());
      if (!next->has_value()) return answer(root->store->trash_bytes());
      FileSystemWorkers& remover = *scrubber;
      remover.PostIdle([root = std::move(root), workers = std::move(workers), scrubber = std::move(scrubber),
                        name = **std::move(next), answer = std::move(answer)]() mutable {
        if (root->abandoned.load()) return;
        const Trash::Removal removal = root->store->RemoveFromTrash(name);
        FileSystemWorkers& back = *workers;
        back.PostUrgent([root = std::move(root), workers = std::move(workers), scrubber = std::move(scrubber),
                         name = std::move(name), removal, answer = std::move(answer)]() mutable {
          const absl::Status removed = root->store->RemovedFromTrash(name, removal);
          if (!removed.ok()) return answer(removed);
          EmptyStep(std::move(root), std::move(workers), std::move(scrubber), std::move(answer));
        });
      });
    });
  }

  // Likewise: what else reads back waits for one step.
  static void SurveyStep(std::shared_ptr<Root> root, std::shared_ptr<FileSystemWorkers> scrubber,
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
  const std::shared_ptr<char> device_;  // While it lives, so do the threads of the file system.
  const std::shared_ptr<FileSystemWorkers> workers_;
  const std::shared_ptr<FileSystemWorkers> questions_;
  const std::shared_ptr<FileSystemWorkers> scrubber_;
  const std::shared_ptr<ChecksumPool> checksums_;
  std::shared_ptr<Root> root_ = std::make_shared<Root>();
  // Callbacks that have not run; used on the engine's thread. Gone with this object.
  const std::shared_ptr<int> pending_ = std::make_shared<int>(0);
};

void ThreadedRootIoFactory::Io::WritePart(InflightId64 id, storage::v1::PartRecord record,
                                          std::vector<FileImage> files,
                                          std::shared_ptr<std::atomic<int64_t>> written_bytes,
                                          Callback<absl::StatusOr<storage::v1::PartRecord>> done) {
  if (written_bytes == nullptr) written_bytes = std::make_shared<std::atomic<int64_t>>(0);
  using Answerer = absl::AnyInvocable<void(absl::StatusOr<storage::v1::PartRecord>)>;
  // Third, on the metadata worker: the record says that the files are there.
  auto remember = [id](Root& root, storage::v1::PartRecord part, int32_t chunk_bytes,
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
  // First, there, too: the directories. Second, on the I/O thread: the files.
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
  // Without asking a server that may be gone. Of a descriptor that is none the device is 0:0, and Open fails.
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
  CKPTD_ASSIGN_OR_RETURN(std::shared_ptr<FileSystemWorkers> questions, WorkersOf("ask-" + device));
  CKPTD_ASSIGN_OR_RETURN(std::shared_ptr<FileSystemWorkers> scrubber, WorkersOf("scrub-" + device));
  return std::make_unique<Io>(options_, clock_, gate_, std::move(in_use), std::move(work),
                              std::move(questions), std::move(scrubber), checksums_, std::move(open));
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

// Ends the threads of file systems of which no RootIo is left. What was asked of them is done first.
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

std::vector<std::string> ThreadedRootIoFactory::Close(Duration patience) {
  gate_->Close();
  for (const auto& [device, workers] : workers_) {
    workers->BeginEnd();
    ending_.push_back(workers);
  }
  workers_.clear();
  const Instant deadline = SystemClock().Now() + patience;
  std::vector<std::string> hung;
  for (const auto& workers : ending_) {
    if (!workers->WaitEnded(deadline)) hung.push_back(workers->name());
  }
  ending_.clear();
  return hung;
}

}  // namespace ckptd
