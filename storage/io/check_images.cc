#include "storage/io/check_images.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "storage/base/checksums/crc32c.h"
#include "storage/base/errors.h"
#include "storage/base/mutex.h"

namespace ckptd {

uint32_t CrcOf(const FileImage& image, int64_t offset, int64_t size) {
  uint32_t crc = 0;
  for (const std::span<const std::byte> run : image.runs) {
    const auto length = static_cast<int64_t>(run.size());
    if (offset < length && size > 0) {
      const int64_t here = std::min(size, length - offset);
      crc = Crc32c(run.subspan(static_cast<size_t>(offset), static_cast<size_t>(here)), crc);
      size -= here;
      offset = 0;
    } else {
      offset = std::max<int64_t>(0, offset - length);
    }
  }
  return crc;
}

namespace {

struct Chunk {
  size_t file = 0;
  int number = 0;
};

// The check of some images. Each of its steps on the pool checks one chunk.
class Check : public std::enable_shared_from_this<Check> {
 public:
  Check(ChecksumPool* pool, std::vector<FileImage> images, std::vector<storage::v1::FileRecord> records,
        int32_t chunk_bytes, std::function<bool()> stop, absl::AnyInvocable<void(absl::Status)> done)
      : pool_(pool),
        images_(std::move(images)),
        records_(std::move(records)),
        chunk_bytes_(chunk_bytes),
        stop_(std::move(stop)),
        done_(std::move(done)) {}

  void Start(int parallel) {
    {
      MutexLock lock(mutex_);
      running_ = parallel;
    }
    for (int i = 0; i < parallel; ++i) Submit();
  }

 private:
  void Submit() {
    pool_->Submit([self = shared_from_this()] { self->Step(); });
  }

  void Step() {
    if (const std::optional<Chunk> chunk = Take()) {
      CheckChunk(*chunk);
      return Submit();
    }
    absl::Status result;
    {
      MutexLock lock(mutex_);
      if (--running_ > 0) return;
      result = result_;
    }
    done_(result);
  }

  // Returns the next chunk to check; null when the check is over.
  std::optional<Chunk> Take() {
    MutexLock lock(mutex_);
    if (!result_.ok()) return std::nullopt;
    if (stop_()) {
      result_ = absl::CancelledError("the check was stopped");
      return std::nullopt;
    }
    while (next_.file < records_.size() && next_.number == records_[next_.file].chunk_crc32c_size())
      next_ = {next_.file + 1, 0};
    if (next_.file == records_.size()) return std::nullopt;
    const Chunk taken = next_;
    ++next_.number;
    return taken;
  }

  void CheckChunk(const Chunk& chunk) {
    const storage::v1::FileRecord& record = records_[chunk.file];
    const int64_t offset = chunk.number * chunk_bytes_;
    const uint32_t found =
        CrcOf(images_[chunk.file], offset, std::min(chunk_bytes_, record.size_bytes() - offset));
    const uint32_t expected = record.chunk_crc32c(chunk.number);
    if (found == expected) return;
    MutexLock lock(mutex_);
    if (!result_.ok()) return;
    result_ = MakeError(absl::StatusCode::kDataLoss, "CORRUPT_FILE",
                        absl::StrFormat("chunk %d of %s has CRC32C %#010x, but was saved with %#010x",
                                        chunk.number, record.path(), found, expected),
                        {{"path", record.path()},
                         {"chunk", absl::StrCat(chunk.number)},
                         {"expected", absl::StrFormat("%#010x", expected)},
                         {"found", absl::StrFormat("%#010x", found)}});
  }

  ChecksumPool* const pool_;  // Outlives this: it ends only after the work that was submitted to it.
  const std::vector<FileImage> images_;
  const std::vector<storage::v1::FileRecord> records_;
  const int64_t chunk_bytes_;
  const std::function<bool()> stop_;
  absl::AnyInvocable<void(absl::Status)> done_;  // Called by the last step.
  Mutex mutex_;
  Chunk next_ ABSL_GUARDED_BY(mutex_);
  int running_ ABSL_GUARDED_BY(mutex_) = 0;  // Steps that are queued or at work.
  absl::Status result_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

void CheckImages(ChecksumPool* pool, int parallel, std::vector<FileImage> images,
                 std::vector<storage::v1::FileRecord> records, int32_t chunk_bytes,
                 std::function<bool()> stop, absl::AnyInvocable<void(absl::Status)> done) {
  std::make_shared<Check>(pool, std::move(images), std::move(records), chunk_bytes, std::move(stop),
                          std::move(done))
      ->Start(std::max(1, parallel));
}

}  // namespace ckptd
