#include "storage/commit/checkpoint/unchanged_file.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <utility>

#include "absl/status/statusor.h"
#include "storage/commit/checkpoint/disk_file.h"
#include "storage/io/check_images.h"

namespace ckptd {
namespace {

// Read at once, in several reads.
constexpr int64_t kPieceBytes = 32 << 20;
constexpr std::align_val_t kAlignment{4096};

struct Free {
  void operator()(std::byte* data) const { ::operator delete(data, kAlignment); }
};

bool IsStopped(const int32_t* stop) {
  return stop != nullptr && std::atomic_ref(*const_cast<int32_t*>(stop)).load() != 0;
}

bool HasChecksums(const FileImage& image, const storage::v1::FileRecord& record, int64_t chunk_bytes,
                  const int32_t* stop) {
  for (int chunk = 0; chunk < record.chunk_crc32c_size(); ++chunk) {
    const int64_t offset = chunk * chunk_bytes;
    const uint32_t crc = CrcOf(image, offset, std::min(chunk_bytes, image.size - offset));
    if (crc != record.chunk_crc32c(chunk) || IsStopped(stop)) return false;
  }
  return true;
}

// Whether the bytes of the image from `offset` on are these.
bool HasBytes(const FileImage& image, int64_t offset, std::span<const std::byte> bytes) {
  for (std::span<const std::byte> run : image.runs) {
    const auto length = static_cast<int64_t>(run.size());
    if (offset >= length) {
      offset -= length;
      continue;
    }
    run = run.subspan(static_cast<size_t>(offset));
    const size_t size = std::min(run.size(), bytes.size());
    if (std::memcmp(run.data(), bytes.data(), size) != 0) return false;
    bytes = bytes.subspan(size);
    if (bytes.empty()) return true;
    offset = 0;
  }
  return bytes.empty();
}

}  // namespace

ScopedHandle OpenIfUnchanged(FileSystem& fs, Handle checkpoint_dir, const storage::v1::FileRecord& record,
                             int32_t chunk_bytes, const FileImage& image, int threads, const int32_t* stop) {
  if (record.size_bytes() != image.size || !HasChecksums(image, record, chunk_bytes, stop)) return {};
  absl::StatusOr<ScopedHandle> file = OpenScoped(fs, checkpoint_dir, record.path(), OpenMode::kRead);
  if (!file.ok()) return {};
  const absl::StatusOr<FileStat> before = fs.Stat(file->get(), "");
  if (!before.ok() || before->size != image.size) return {};

  const int64_t whole_chunks = std::max<int64_t>(1, kPieceBytes / chunk_bytes);
  const int64_t step = std::min(image.size, whole_chunks * chunk_bytes);
  const std::unique_ptr<std::byte, Free> buffer(
      static_cast<std::byte*>(::operator new(static_cast<size_t>(step), kAlignment)));
  for (int64_t offset = 0; offset < image.size; offset += step) {
    const std::span<std::byte> piece(buffer.get(), static_cast<size_t>(std::min(step, image.size - offset)));
    const std::span<std::byte> runs[] = {piece};
    if (!ReadFromDisk(fs, checkpoint_dir, record, chunk_bytes, offset, runs, threads, stop).ok()) return {};
    if (!HasBytes(image, offset, piece)) return {};
  }
  // The file that was read, by its path, is the open one, and nobody has changed it meanwhile.
  const absl::StatusOr<FileStat> after = fs.Stat(checkpoint_dir, record.path());
  const bool same = after.ok() && after->device == before->device && after->inode == before->inode &&
                    after->modified_ns == before->modified_ns && after->size == before->size;
  return same ? *std::move(file) : ScopedHandle();
}

}  // namespace ckptd
