// The part of a RootIo on a real file system that is the same for roots of one node and of several: reading.
#ifndef CKPTD_DAEMON_ROOT_IO_COMMON_DISK_ROOT_IO_H_
#define CKPTD_DAEMON_ROOT_IO_COMMON_DISK_ROOT_IO_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/engine/seams/root_io.h"
#include "daemon/root_io/common/disk_checkpoint_reader.h"
#include "daemon/root_io/common/opened_root.h"
#include "daemon/root_io/common/unchanged_files.h"
#include "daemon/root_io/threads/file_system_workers.h"
#include "daemon/root_io/threads/root_threads.h"
#include "storage/base/status_macros.h"
#include "storage/commit/checkpoint/foreign.h"
#include "storage/io/check_images.h"

namespace ckptd {

// Surveys a foreign checkpoint in steps, so that other work of the scrub thread waits for one step at most.
void SurveyInSteps(std::shared_ptr<OpenedRoot> root, std::shared_ptr<FileSystemWorkers> scrubber,
                   std::unique_ptr<ForeignReader> reader,
                   absl::AnyInvocable<void(absl::StatusOr<ForeignSurvey>)> answer);

// `Interface`: RootIo or a class derived from it. `Root`: derived from OpenedRoot.
template <typename Interface, typename Root>
class DiskRootIo : public Interface {
 public:
  DiskRootIo(RootThreads threads, RootOpener open) : threads_(std::move(threads)), answers_(threads_.gate) {
    root_->open_directory = std::move(open);
  }
  ~DiskRootIo() override {
    root_->abandoned.store(true);
    std::atomic_ref(root_->stop).store(1);
    // On the metadata worker, because closing a directory may wait for its file system.
    threads_.metadata->PostUrgent([root = std::move(root_)]() mutable { root.reset(); });
  }

  void FreeBytes(Callback<absl::StatusOr<int64_t>> done) override {
    Query(std::move(done), [](Root& root) -> absl::StatusOr<int64_t> {
      CKPTD_ASSIGN_OR_RETURN(const SpaceInfo space, root.fs->Space(root.dir.get()));
      return space.free_bytes;
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
    threads_.scrubber->PostUrgent([root = root_, reader = std::move(reader), files = std::move(files),
                                   answer = answers_.To(std::move(done))]() mutable {
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
        threads_.checks.get(), CheckThreads(), std::move(images), std::move(records), chunk_bytes,
        [root = root_] { return root->abandoned.load(); }, answers_.To(std::move(done)));
  }

  void ListForeign(Callback<absl::StatusOr<std::vector<ForeignCheckpoint>>> done) override {
    threads_.scrubber->PostUrgent([root = root_, answer = answers_.To(std::move(done))]() mutable {
      if (!root->open.load()) return answer(RootNotOpen());
      answer(ckptd::ListForeign(*root->fs, root->dir.get()));
    });
  }

  void SurveyForeign(std::string tag, uid_t owner, int32_t chunk_bytes,
                     std::shared_ptr<SurveyProgress> progress,
                     Callback<absl::StatusOr<ForeignSurvey>> done) override {
    auto begin = [root = root_, scrubber = threads_.scrubber, tag = std::move(tag), owner, chunk_bytes,
                  progress = std::move(progress), answer = answers_.To(std::move(done))]() mutable {
      if (!root->open.load()) return answer(RootNotOpen());
      auto reader = std::make_unique<ForeignReader>(root->fs.get(), root->dir.get(), std::move(tag), owner,
                                                    chunk_bytes, std::move(progress));
      SurveyInSteps(std::move(root), std::move(scrubber), std::move(reader), std::move(answer));
    };
    threads_.scrubber->PostIdle(std::move(begin));
  }

  std::optional<Instant> pending_since() const override {
    const std::optional<Instant> work = threads_.metadata->pending_since();
    const std::optional<Instant> query = threads_.queries->pending_since();
    return work && query ? std::min(*work, *query) : work ? work : query;
  }
  bool has_pending() const override { return answers_.has_pending(); }

 protected:
  // Runs `operation` with the root on the metadata worker; `done` gets its result.
  template <typename T, typename Operation>
  void Ask(Callback<T> done, Operation operation) {
    threads_.metadata->PostUrgent([root = root_, answer = answers_.To(std::move(done)),
                                   operation = std::move(operation)]() mutable { answer(operation(*root)); });
  }

  // Runs `write` on the metadata worker, with those of the files that `base` has with the same bytes: as for
  // RootIo::WritePart. They are compared on the scrub thread, which a hung file system may hold up.
  void AfterComparing(std::shared_ptr<CheckpointReader> base, const std::vector<FileImage>& files,
                      absl::AnyInvocable<void(UnchangedFiles)> write) {
    const std::shared_ptr<FileSystemWorkers> metadata = threads_.metadata;
    const auto go_on = [metadata](absl::AnyInvocable<void(UnchangedFiles)> work, UnchangedFiles unchanged) {
      metadata->PostUrgent([work = std::move(work), unchanged = std::move(unchanged)]() mutable {
        work(std::move(unchanged));
      });
    };
    if (base == nullptr) return go_on(std::move(write), {});
    threads_.scrubber->PostUrgent([go_on, root = root_, base = std::move(base), files,
                                   write = std::move(write),
                                   chunk_bytes = threads_.options.writer.chunk_bytes]() mutable {
      UnchangedFiles unchanged = UnchangedFiles::Find(static_cast<const DiskCheckpointReader&>(*base), files,
                                                      chunk_bytes, &root->stop);
      base.reset();
      go_on(std::move(write), std::move(unchanged));
    });
  }

  // Like Ask, on the thread for queries. Fails unless the root is open. `operation` may use `fs` and `dir`
  // only.
  template <typename T, typename Operation>
  void Query(Callback<T> done, Operation operation) {
    threads_.queries->PostUrgent(
        [root = root_, answer = answers_.To(std::move(done)), operation = std::move(operation)]() mutable {
          if (!root->open.load()) return answer(RootNotOpen());
          answer(operation(*root));
        });
  }

  const RootThreads threads_;
  RootAnswers answers_;
  std::shared_ptr<Root> root_ = std::make_shared<Root>();
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ROOT_IO_COMMON_DISK_ROOT_IO_H_
