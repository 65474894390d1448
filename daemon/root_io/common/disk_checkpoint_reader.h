// Readers of committed checkpoints, and what the readers of one root share.
#ifndef CKPTD_DAEMON_ROOT_IO_COMMON_DISK_CHECKPOINT_READER_H_
#define CKPTD_DAEMON_ROOT_IO_COMMON_DISK_CHECKPOINT_READER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "daemon/engine/seams/root_io.h"
#include "storage/base/mutex.h"
#include "storage/format/manifest.h"
#include "storage/fs/file_system.h"

namespace ckptd {

// The sequences of the checkpoints that have an open reader. Thread-safe.
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

// The manifests of open readers. Readers of one checkpoint share one manifest, because all ranks of a job
// open the same checkpoint and a manifest may be large. Used on the metadata worker.
class OpenManifests {
 public:
  // Returns the equal manifest of an open reader, else `manifest`.
  std::shared_ptr<const Manifest> Share(Manifest manifest);

 private:
  std::map<int64_t, std::weak_ptr<const Manifest>> open_;  // By sequence.
};

// Reads one committed checkpoint. While it lives, the checkpoint stays in trash
// even after its eviction.
class DiskCheckpointReader : public CheckpointReader {
 public:
  DiskCheckpointReader(std::shared_ptr<FileSystem> fs, ScopedHandle dir,
                       std::shared_ptr<const Manifest> manifest, std::shared_ptr<OpenReaders> readers)
      : fs_(std::move(fs)),
        dir_(std::move(dir)),
        manifest_(std::move(manifest)),
        readers_(std::move(readers)) {
    readers_->Add(manifest_->summary.sequence());
  }
  ~DiskCheckpointReader() override { readers_->Remove(manifest_->summary.sequence()); }

  const Manifest& manifest() const override { return *manifest_; }

  // Reads `into.size()` bytes of a file from `offset` on, and verifies the checksums of their chunks.
  absl::Status Read(const std::string& path, int64_t offset, std::span<std::byte> into) override;
  // Reads and verifies a whole file, on up to 8 threads. Ends early once `*stop`, an atomic, is not 0.
  absl::Status ReadWhole(const FileTarget& target, const int32_t* stop) const;
  // As OpenIfUnchanged of storage/commit/checkpoint, for the file of the image's path; with its record, which lives
  // as long as the reader. No handle if there is no such file.
  std::pair<ScopedHandle, const storage::v1::FileRecord*> OpenIfUnchanged(const FileImage& image,
                                                                          const int32_t* stop) const;

 private:
  absl::StatusOr<const storage::v1::FileRecord*> Find(const std::string& path) const;

  const std::shared_ptr<FileSystem> fs_;
  const ScopedHandle dir_;
  const std::shared_ptr<const Manifest> manifest_;
  const std::shared_ptr<OpenReaders> readers_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ROOT_IO_COMMON_DISK_CHECKPOINT_READER_H_
