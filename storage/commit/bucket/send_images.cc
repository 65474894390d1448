#include "storage/commit/bucket/send_images.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <span>

#include "absl/strings/str_cat.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "storage/base/checksums/crc32c.h"
#include "storage/base/errors.h"
#include "storage/base/mutex.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

class Sender {
 public:
  Sender(ObjectStore& store, const std::string& base, const std::vector<FileImage>& images,
         const SendOptions& options, std::atomic<int64_t>* sent_bytes)
      : store_(store), base_(base), images_(images), options_(options), sent_bytes_(sent_bytes) {}

  absl::StatusOr<std::vector<WrittenFile>> Run() {
    std::vector<FilePart> parts;
    uploads_.resize(images_.size());
    for (size_t i = 0; i < images_.size(); ++i) {
      const FileImage& image = images_[i];
      const int64_t chunks = (image.size + options_.chunk_bytes - 1) / options_.chunk_bytes;
      files_.push_back({image.path, image.size, std::vector<uint32_t>(static_cast<size_t>(chunks))});
      const std::vector<FilePart> of_file = PartsOf(i, image.size, options_.chunk_bytes, options_.transfer);
      if (of_file.size() > 1) {
        CKPTD_ASSIGN_OR_RETURN(uploads_[i], store_.BeginUpload(KeyOf(i)));
      }
      parts.insert(parts.end(), of_file.begin(), of_file.end());
    }
    const int threads = options_.transfer.threads;
    CKPTD_RETURN_IF_ERROR(RunParallel(threads, parts.size(), [&](size_t i) { return SendPart(parts[i]); }));
    CKPTD_RETURN_IF_ERROR(RunParallel(threads, images_.size(), [&](size_t i) { return Complete(i); }));
    if (!options_.store_compares_checksums)
      CKPTD_RETURN_IF_ERROR(RunParallel(threads, parts.size(), [&](size_t i) { return GetBack(parts[i]); }));
    return std::move(files_);
  }

 private:
  std::string KeyOf(size_t file) const { return base_ + images_[file].path; }

  // Calls `use` with the bytes of a part: where they lie, if they are not in several segments.
  absl::Status With(const FilePart& part,
                    const std::function<absl::Status(std::span<const std::byte>)>& use) {
    int64_t begin = 0;  // Of the run.
    const auto& runs = images_[part.file].runs;
    for (const std::span<const std::byte> run : runs) {
      const int64_t end = begin + static_cast<int64_t>(run.size());
      if (part.offset >= begin && part.offset + part.size <= end)
        return use(run.subspan(static_cast<size_t>(part.offset - begin), static_cast<size_t>(part.size)));
      begin = end;
    }
    return buffers_.With(part.size, [&](std::span<std::byte> buffer) {
      size_t filled = 0;
      int64_t at = 0;
      for (const std::span<const std::byte> run : runs) {
        const int64_t wanted = part.offset + static_cast<int64_t>(filled) - at;
        at += static_cast<int64_t>(run.size());
        if (wanted >= static_cast<int64_t>(run.size())) continue;
        const auto piece =
            run.subspan(static_cast<size_t>(wanted))
                .first(std::min(run.size() - static_cast<size_t>(wanted), buffer.size() - filled));
        std::memcpy(buffer.data() + filled, piece.data(), piece.size());
        filled += piece.size();
        if (filled == buffer.size()) break;
      }
      return use(buffer);
    });
  }

  absl::Status SendPart(const FilePart& part) {
    const auto send = [&](std::span<const std::byte> bytes) -> absl::Status {
      const uint32_t crc = TakeChecksums(part, bytes);
      const std::optional<MultipartUpload>& upload = uploads_[part.file];
      if (!upload.has_value()) return store_.Put(KeyOf(part.file), bytes, crc, PutMode::kReplace);
      CKPTD_ASSIGN_OR_RETURN(const UploadedPart sent, store_.PutPart(*upload, part.number, bytes, crc));
      MutexLock lock(mutex_);
      sent_[part.file][part.number] = sent;
      return absl::OkStatus();
    };
    CKPTD_RETURN_IF_ERROR(With(part, send));
    sent_bytes_->fetch_add(part.size, std::memory_order_relaxed);
    return absl::OkStatus();
  }

  // Computes those of the part's chunks, and returns that of the part. Both are of what is sent: should the
  // memory change in between, the store refuses the part, or a reader finds the chunk damaged.
  uint32_t TakeChecksums(const FilePart& part, std::span<const std::byte> bytes) {
    const auto chunk = static_cast<size_t>(options_.chunk_bytes);
    size_t index = static_cast<size_t>(part.offset) / chunk;
    for (size_t at = 0; at < bytes.size(); at += chunk)
      files_[part.file].chunk_crc32c[index++] = Crc32c(bytes.subspan(at, std::min(chunk, bytes.size() - at)));
    return Crc32c(bytes);
  }

  absl::Status Complete(size_t file) {
    if (!uploads_[file].has_value()) return absl::OkStatus();
    std::vector<UploadedPart> parts;
    {
      MutexLock lock(mutex_);
      for (const auto& [number, part] : sent_[file]) parts.push_back(part);
    }
    const absl::Status completed = store_.CompleteUpload(*uploads_[file], parts);
    if (ReasonOf(completed) != "NO_OBJECT") return completed;
    const absl::StatusOr<ObjectInfo> info =
        store_.Head(KeyOf(file));  // An earlier try may have had its effect.
    return info.ok() && info->size == images_[file].size ? absl::OkStatus() : completed;
  }

  absl::Status GetBack(const FilePart& part) {
    storage::v1::FileRecord record;
    const WrittenFile& file = files_[part.file];
    record.set_path(file.path);
    record.mutable_chunk_crc32c()->Add(file.chunk_crc32c.begin(), file.chunk_crc32c.end());
    const absl::Status got = buffers_.With(part.size, [&](std::span<std::byte> bytes) {
      return GetChecked(store_, KeyOf(part.file), record, options_.chunk_bytes, part.offset, bytes);
    });
    if (!ProvesDamage(got)) return got;
    return MakeError(absl::StatusCode::kDataLoss, "CORRUPT_TRANSFER",
                     absl::StrCat(KeyOf(part.file), " came back other than it was sent; save again"));
  }

  ObjectStore& store_;
  const std::string& base_;
  const std::vector<FileImage>& images_;
  const SendOptions& options_;
  std::atomic<int64_t>* const sent_bytes_;
  std::vector<WrittenFile> files_;  // Each chunk has one writer.
  std::vector<std::optional<MultipartUpload>> uploads_;
  PartBuffers buffers_;
  Mutex mutex_;
  std::map<size_t, std::map<int, UploadedPart>> sent_ ABSL_GUARDED_BY(mutex_);  // By file and number.
};

}  // namespace

absl::StatusOr<std::vector<WrittenFile>> SendImages(ObjectStore& store, const std::string& base,
                                                    const std::vector<FileImage>& images,
                                                    const SendOptions& options,
                                                    std::atomic<int64_t>* sent_bytes) {
  return Sender(store, base, images, options, sent_bytes).Run();
}

}  // namespace ckptd
