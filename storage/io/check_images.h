// Compares images in memory with the checksums that were computed when they were written.
#ifndef CKPTD_STORAGE_IO_CHECK_IMAGES_H_
#define CKPTD_STORAGE_IO_CHECK_IMAGES_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "storage/io/part_writer.h"

namespace ckptd {

// The CRC32C of the bytes [offset, offset + size) of an image.
uint32_t CrcOf(const FileImage& image, int64_t offset, int64_t size);

// Calls `done` once, on the pool, when nothing refers to the images any more: with OK; with DATA_LOSS, reason
// CORRUPT_FILE, and the details path, chunk, expected and found of a chunk that differs; or with
// CANCELLED, soon after `stop` returns true. records[i] belongs to images[i] and has the same size. Up to
// `parallel` chunks are checked at the same time, and between two of them other work on the pool gets its
// turn. `stop` is called by one thread at a time.
void CheckImages(ChecksumPool* pool, int parallel, std::vector<FileImage> images,
                 std::vector<storage::v1::FileRecord> records, int32_t chunk_bytes,
                 std::function<bool()> stop, absl::AnyInvocable<void(absl::Status)> done);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_IO_CHECK_IMAGES_H_
