#include "storage/io/check_images.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "storage/base/checksums/crc32c.h"
#include "storage/base/errors.h"

namespace ckptd {
namespace {

// The CRC32C of the bytes [offset, offset + size) of an image.
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

struct Check {
  ChecksumPool* pool;  // Outlives this: it ends only after the work that was submitted to it.
  std::vector<FileImage> images;
  std::vector<storage::v1::FileRecord> records;
  int64_t chunk_bytes;
  std::function<bool()> stop;
  absl::AnyInvocable<void(absl::Status)> done;
  size_t file = 0;
  int chunk = 0;

  // Checks the next chunk. False if none is left, or if this one differs.
  bool CheckNext(absl::Status& result) {
    while (file < records.size() && chunk == records[file].chunk_crc32c_size()) {
      ++file;
      chunk = 0;
    }
    if (file == records.size()) return false;
    const int64_t offset = chunk * chunk_bytes;
    const uint32_t found =
        CrcOf(images[file], offset, std::min(chunk_bytes, records[file].size_bytes() - offset));
    const uint32_t expected = records[file].chunk_crc32c(chunk);
    if (found != expected) {
      const std::string& path = records[file].path();
      result = MakeError(absl::StatusCode::kDataLoss, "CORRUPT_FILE",
                         absl::StrFormat("chunk %d of %s has CRC32C %#010x, but was saved with %#010x", chunk,
                                         path, found, expected),
                         {{"path", path},
                          {"chunk", absl::StrCat(chunk)},
                          {"expected", absl::StrFormat("%#010x", expected)},
                          {"found", absl::StrFormat("%#010x", found)}});
      return false;
    }
    ++chunk;
    return true;
  }
};

void Go(std::shared_ptr<Check> check) {
  absl::Status result;
  if (check->stop()) {
    result = absl::CancelledError("the check was stopped");
  } else if (check->CheckNext(result)) {
    ChecksumPool* const pool = check->pool;
    return pool->Submit([check = std::move(check)]() mutable { Go(std::move(check)); });
  }
  check->done(result);
}

}  // namespace

void CheckImages(ChecksumPool* pool, std::vector<FileImage> images,
                 std::vector<storage::v1::FileRecord> records, int32_t chunk_bytes,
                 std::function<bool()> stop, absl::AnyInvocable<void(absl::Status)> done) {
  auto check = std::make_shared<Check>(
      Check{pool, std::move(images), std::move(records), chunk_bytes, std::move(stop), std::move(done)});
  pool->Submit([check = std::move(check)]() mutable { Go(std::move(check)); });
}

}  // namespace ckptd
