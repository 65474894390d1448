// Compares images in memory with the checksums that were taken when they were written.
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

// `done` runs on the pool, once, when nothing refers to the images any more: OK, DATA_LOSS, reason
// CORRUPT_FILE, with details path, chunk, expected and found of the first chunk that differs, or CANCELLED
// soon after `stop` says true. records[i] is of images[i], of the same size. A chunk at a time, so that what
// else is submitted has its turn between them.
void CheckImages(ChecksumPool* pool, std::vector<FileImage> images,
                 std::vector<storage::v1::FileRecord> records, int32_t chunk_bytes,
                 std::function<bool()> stop, absl::AnyInvocable<void(absl::Status)> done);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_IO_CHECK_IMAGES_H_
