#include "daemon/root_io/shared/shared_disk_root_io.h"

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/root_io/common/disk_root_io.h"
#include "daemon/root_io/common/part_record.h"
#include "daemon/root_io/shared/shared_disk_root.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"
#include "storage/base/status_macros.h"
#include "storage/commit/shared/run/look_again.h"
#include "storage/commit/shared/trials/try_nodes.h"

namespace ckptd {
namespace {

constexpr Duration kLookPause = std::chrono::milliseconds(100);
// Added to the time for which names may be old, for a file system that is slow.
constexpr Duration kLookSlack = std::chrono::seconds(2);
// How many names one step of a removal may remove: other work of the metadata worker waits for the step.
constexpr int64_t kNamesPerStep = 1000;

const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

bool IsStale(const absl::Status& status) { return ReasonOf(status) == kLookAgain; }
// No node removes or changes a checkpoint while this node may read it, so files that are missing are only not
// visible yet.
bool LooksOldOrDamaged(const absl::Status& status) {
  return IsStale(status) || ReasonOf(status) == reason::kNoCheckpoint || absl::IsDataLoss(status);
}

// The directory is new, and this daemon writes each file of its ranks once: a file that exists is another
// node's.
absl::Status WithConflict(const absl::Status& error) {
  if (ErrnoOf(error) != EEXIST) return error;
  return MakeError(absl::StatusCode::kAlreadyExists, reason::kFileConflict,
                   absl::StrCat("ranks of two nodes save one file: ", std::string(error.message())));
}

absl::Status NotThere(const std::string& tag, int64_t sequence, const absl::Status& why) {
  return MakeError(absl::StatusCode::kNotFound, reason::kNoCheckpoint,
                   absl::StrCat("no checkpoint ", tag, " of sequence ", sequence,
                                " is in this root: ", std::string(why.message())),
                   {{"tag", tag}, {"sequence", absl::StrCat(sequence)}});
}

// The coordinator has made it, and this node has looked for it for longer than names may be old.
absl::Status NeverSeen(const absl::Status& why) {
  return MakeError(
      absl::StatusCode::kAborted, reason::kRootChanged,
      absl::StrCat(std::string(why.message()),
                   ". Its .ckptd was removed, or this node does not see what the coordinator has made "
                   "within cluster.visibility_seconds (ckptctl doctor --nodes measures that); save again"));
}

class SharedDiskRootIo : public DiskRootIo<SharedFilesIo, SharedDiskRoot> {
 public:
  template <typename T>
  using Callback = ckptd::Callback<T>;

  SharedDiskRootIo(RootThreads threads, RootOpener open, SharedRootIdentity identity)
      : DiskRootIo(std::move(threads), std::move(open)) {
    root_->identity = std::move(identity);
  }

  // ---- The root

  void Open(Callback<absl::StatusOr<RootSnapshot>> done) override {
    AskWithRetries(IsStale, std::move(done),
                   [workers = threads_.metadata, options = threads_.options, clock = threads_.clock](
                       SharedDiskRoot& root) { return root.Open(*workers, options, clock); });
  }
  void Rescan(Callback<absl::StatusOr<RootSnapshot>> done) override {
    AskWithRetries(IsStale, std::move(done), [](SharedDiskRoot& root) { return root.Scan(); });
  }
  void RunId(Callback<absl::StatusOr<RunOfRoot>> done) override {
    AskWithRetries(IsStale, std::move(done), [](SharedDiskRoot& root) -> absl::StatusOr<RunOfRoot> {
      CKPTD_RETURN_IF_ERROR(root.CheckOpen());
      CKPTD_ASSIGN_OR_RETURN(std::string id, root.store->RunId());
      CKPTD_ASSIGN_OR_RETURN(const FileStat found, root.fs->Stat(root.dir.get(), ""));
      return RunOfRoot{std::move(id), found.inode, found.uid};
    });
  }
  void CheckTarget(std::string tag, std::vector<std::string> pointers, Callback<absl::Status> done) override {
    Ask(std::move(done),
        [tag = std::move(tag), pointers = std::move(pointers)](SharedDiskRoot& root) -> absl::Status {
          CKPTD_RETURN_IF_ERROR(root.CheckOpen());
          return root.store->CheckTarget(tag, pointers);
        });
  }

  // Dropped, and an ended one stopped, when the root is closed.
  void TryNodes(NodesToTry trying, Callback<absl::StatusOr<NodesTried>> done) override {
    threads_.trials->PostIdle([root = root_, workers = threads_.trials.get(), clock = threads_.clock,
                               trying = std::move(trying), answer = answers_.To(std::move(done))]() mutable {
      if (!root->open.load()) return answer(RootNotOpen());
      // On a thread of `workers`, which outlive it.
      trying.stopped = [root, workers, stopped = std::move(trying.stopped)] {
        return root->abandoned.load() || workers->ending() || (stopped && stopped());
      };
      answer(ckptd::TryNodes(*root->fs, root->dir.get(), *clock, trying));
    });
  }

  // ---- This node's part of a save

  void OpenPart(InflightId64 id, const std::string& tag, int64_t sequence, const std::string& inflight,
                Callback<absl::Status> done) override {
    AskWithRetries(
        IsStale, Callback<absl::Status>([done = std::move(done)](const absl::Status& opened) mutable {
          done(IsStale(opened) ? NeverSeen(opened) : opened);
        }),
        [id, save = SharedInflight{tag, sequence, inflight}](SharedDiskRoot& root) -> absl::Status {
          CKPTD_RETURN_IF_ERROR(root.CheckOpen());
          CKPTD_ASSIGN_OR_RETURN(NodePart part, root.store->BeginPart(save, EarlierDaemon::kNone));
          root.parts.insert_or_assign(id, std::move(part));
          return absl::OkStatus();
        });
  }
  void WritePart(InflightId64 id, storage::v1::PartRecord record, std::vector<FileImage> files,
                 std::shared_ptr<CheckpointReader> base, std::shared_ptr<std::atomic<int64_t>> written_bytes,
                 Callback<absl::StatusOr<storage::v1::PartRecord>> done) override;
  void FinishPart(InflightId64 id, std::vector<storage::v1::PartRecord> parts,
                  Callback<absl::StatusOr<std::string>> done) override {
    Ask(std::move(done), [id, parts = std::move(parts)](SharedDiskRoot& root) -> absl::StatusOr<std::string> {
      CKPTD_ASSIGN_OR_RETURN(NodePart * part, root.FindPart(id));
      CKPTD_ASSIGN_OR_RETURN(std::string digest, root.store->FinishPart(*part, root.RecordOf(parts)));
      root.parts.erase(id);  // Closes its handles; the coordinator goes on with the directory.
      return digest;
    });
  }
  void Discard(InflightId64 id, Callback<absl::Status> done) override {
    Ask(std::move(done), [id](SharedDiskRoot& root) {
      root.parts.erase(id);
      return absl::OkStatus();
    });
  }

  // ---- Checkpoints

  void LoadCheckpoint(const std::string& tag, int64_t sequence,
                      Callback<absl::StatusOr<LoadedCheckpoint>> done) override {
    AskWithRetries(IsStale, std::move(done),
                   [tag, sequence](SharedDiskRoot& root) { return root.Load(tag, sequence); });
  }
  void OpenCheckpoint(std::string tag, int64_t sequence,
                      Callback<absl::StatusOr<std::shared_ptr<CheckpointReader>>> done) override {
    AskWithRetries(LooksOldOrDamaged, std::move(done),
                   [tag = std::move(tag),
                    sequence](SharedDiskRoot& root) -> absl::StatusOr<std::shared_ptr<CheckpointReader>> {
                     CKPTD_RETURN_IF_ERROR(root.CheckOpen());
                     CKPTD_ASSIGN_OR_RETURN(SharedRootStore::OpenedCheckpoint opened,
                                            root.store->OpenCheckpoint(tag, sequence));
                     return std::make_shared<DiskCheckpointReader>(
                         root.fs, std::move(opened.dir), root.manifests.Share(std::move(opened.manifest)),
                         root.readers);
                   });
  }
  void SetDamage(std::string, int64_t sequence, std::optional<storage::v1::Damage> damage,
                 Callback<absl::StatusOr<PointerFiles>> done) override {
    Ask(std::move(done), [sequence, damage = std::move(damage)](SharedDiskRoot& root) {
      return root.SetDamage(sequence, damage);
    });
  }
  void SetPinned(std::string tag, int64_t sequence, bool pinned, Callback<absl::Status> done) override {
    Ask(std::move(done), [tag = std::move(tag), sequence, pinned](SharedDiskRoot& root) {
      return root.SetPinned(tag, sequence, pinned);
    });
  }
  void ReleasePointers(std::string, int64_t sequence, Callback<absl::StatusOr<PointerFiles>> done) override {
    Ask(std::move(done), [sequence](SharedDiskRoot& root) { return root.ReleasePointers(sequence); });
  }

  // ---- The coordinator

  void BeginTerm(int64_t term, Callback<absl::Status> done) override {
    Ask(std::move(done), [term](SharedDiskRoot& root) { return root.BeginTerm(term); });
  }
  void MakeInflight(const std::string& tag, int64_t sequence,
                    Callback<absl::StatusOr<std::string>> done) override {
    Ask(std::move(done), [tag, sequence](SharedDiskRoot& root) -> absl::StatusOr<std::string> {
      CKPTD_RETURN_IF_ERROR(root.CheckOpen());
      CKPTD_ASSIGN_OR_RETURN(SharedInflight made, root.store->MakeInflight(tag, sequence));
      return made.name;
    });
  }
  void FindReplaced(const Publication& publication, Callback<absl::StatusOr<Replaced>> done) override {
    Ask(std::move(done), [publication](SharedDiskRoot& root) { return root.FindReplaced(publication); });
  }
  void Find(const SharedInflight& save, Callback<absl::StatusOr<SharedPlace>> done) override {
    Ask(std::move(done), [save](SharedDiskRoot& root) -> absl::StatusOr<SharedPlace> {
      CKPTD_RETURN_IF_ERROR(root.CheckOpen());
      return root.store->Find(save);
    });
  }
  void Publish(const Publication& publication, Callback<absl::StatusOr<Published>> done) override {
    Ask(std::move(done), [publication](SharedDiskRoot& root) { return root.Publish(publication); });
  }
  void EndTerm() override {
    threads_.metadata->PostUrgent([root = root_] { root->EndTerm(); });
  }
  void CheckRemovable(const std::string& tag, int64_t sequence,
                      Callback<absl::StatusOr<uint64_t>> done) override {
    AskWithRetries<absl::StatusOr<uint64_t>>(
        IsStale,
        [tag, sequence, done = std::move(done)](absl::StatusOr<uint64_t> inode) mutable {
          if (IsStale(inode.status())) inode = NotThere(tag, sequence, inode.status());
          done(std::move(inode));
        },
        [tag, sequence](SharedDiskRoot& root) { return root.CheckRemovable(tag, sequence); });
  }
  void Remove(const std::string& tag, int64_t sequence, uint64_t inode,
              Callback<absl::StatusOr<bool>> done) override {
    threads_.metadata->PostIdle(
        [root = root_, tag, sequence, inode, answer = answers_.To(std::move(done))]() mutable {
          if (absl::Status open = root->CheckOpen(); !open.ok()) return answer(open);
          RemovalBudget budget{.names = kNamesPerStep};
          const absl::StatusOr<bool> gone = root->store->Remove(tag, sequence, budget, inode);
          if (gone.ok() && *gone) root->Forget(sequence);
          answer(gone);
        });
  }
  void Sweep(int64_t last, const std::set<int64_t>& unfinished, Callback<absl::Status> done) override {
    Ask(std::move(done),
        [root = root_, workers = threads_.metadata, last, unfinished](SharedDiskRoot&) -> absl::Status {
          CKPTD_ASSIGN_OR_RETURN(std::vector<std::string> removable, root->Sweep(last, unfinished));
          for (std::string& name : removable) RemoveFromTrash(root, workers, std::move(name));
          return absl::OkStatus();
        });
  }

 private:
  template <typename T>
  struct Looking {
    std::shared_ptr<SharedDiskRoot> root;
    std::shared_ptr<FileSystemWorkers> workers;
    Clock* clock;
    Instant until;
    bool (*again)(const absl::Status&);
    absl::AnyInvocable<T(SharedDiskRoot&)> operation;
    absl::AnyInvocable<void(T)> answer;
  };

  // As Ask, but repeats `operation`, between other work, while `again` is true for its result, for as long as
  // names may be old. Then the last result is the answer.
  template <typename T, typename Operation>
  void AskWithRetries(bool (*again)(const absl::Status&), Callback<T> done, Operation operation) {
    auto looking = std::make_unique<Looking<T>>();
    looking->root = root_;
    looking->workers = threads_.metadata;
    looking->clock = threads_.clock;
    looking->until = threads_.clock->Now() + threads_.options.staleness + kLookSlack;
    looking->again = again;
    looking->operation = std::move(operation);
    looking->answer = answers_.To(std::move(done));
    threads_.metadata->PostUrgent([looking = std::move(looking)]() mutable { Look(std::move(looking)); });
  }
  template <typename T>
  static void Look(std::unique_ptr<Looking<T>> looking) {
    if (looking->root->abandoned.load()) return;
    T result = looking->operation(*looking->root);
    if (!looking->again(StatusOf(result)) || looking->clock->Now() >= looking->until)
      return looking->answer(std::move(result));
    FileSystemWorkers& on = *looking->workers;
    on.PostLater(kLookPause, [looking = std::move(looking)]() mutable {
      AskForNames(*looking->root);
      Look(std::move(looking));
    });
  }
  // Has the client of a network file system ask its server for the root's directory, of which it may keep names
  // for half a minute. Best effort.
  static void AskForNames(SharedDiskRoot& root) {
    if (root.dir) root.fs->Stat(root.dir.get(), "").IgnoreError();
  }

  static void RemoveFromTrash(std::shared_ptr<SharedDiskRoot> root,
                              std::shared_ptr<FileSystemWorkers> workers, std::string name) {
    FileSystemWorkers& on = *workers;
    on.PostIdle([root = std::move(root), workers = std::move(workers), name = std::move(name)]() mutable {
      if (root->abandoned.load()) return;
      RemovalBudget budget{.names = kNamesPerStep};
      const absl::StatusOr<bool> gone = root->store->RemoveFromTrash(name, budget);
      if (!gone.ok() || *gone) return;  // After an error the next sweep tries again.
      RemoveFromTrash(std::move(root), std::move(workers), std::move(name));
    });
  }
};

// The metadata worker makes the directories, and the files that `base` has; the I/O thread writes the others.
void SharedDiskRootIo::WritePart(InflightId64 id, storage::v1::PartRecord record,
                                 std::vector<FileImage> files, std::shared_ptr<CheckpointReader> base,
                                 std::shared_ptr<std::atomic<int64_t>> written_bytes,
                                 Callback<absl::StatusOr<storage::v1::PartRecord>> done) {
  if (written_bytes == nullptr) written_bytes = std::make_shared<std::atomic<int64_t>>(0);
  auto write = [root = root_, workers = threads_.metadata, id,
                chunk_bytes = threads_.options.writer.chunk_bytes, record = std::move(record), files,
                written_bytes = std::move(written_bytes),
                answer = answers_.To(std::move(done))](UnchangedFiles unchanged) mutable {
    const absl::StatusOr<NodePart*> part = root->FindPart(id);
    if (!part.ok()) return answer(part.status());
    std::vector<std::string> paths;
    for (const FileImage& file : files) paths.push_back(file.path);
    if (absl::Status made = root->store->MakeRoomFor(**part, paths); !made.ok()) return answer(made);
    const Handle dir = (*part)->target();
    absl::StatusOr<std::vector<FileImage>> others =
        unchanged.Share(*root->fs, dir, std::move(files), written_bytes.get());
    if (!others.ok()) return answer(others.status());
    workers->Write(root->fs.get(), dir, *std::move(others), std::move(written_bytes),
                   [root, chunk_bytes, record = std::move(record), unchanged = std::move(unchanged),
                    answer = std::move(answer)](absl::StatusOr<std::vector<WrittenFile>> written) mutable {
                     if (!written.ok()) return answer(WithConflict(written.status()));
                     answer(PartRecordOf(std::move(record), chunk_bytes,
                                         std::move(unchanged).AllOf(*std::move(written))));
                   });
  };
  AfterComparing(std::move(base), files, std::move(write));
}

}  // namespace

std::unique_ptr<SharedFilesIo> MakeSharedDiskRootIo(RootThreads threads, RootOpener open,
                                                    SharedRootIdentity identity) {
  return std::make_unique<SharedDiskRootIo>(std::move(threads), std::move(open), std::move(identity));
}

}  // namespace ckptd
