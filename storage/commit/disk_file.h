// Files of a checkpoint as this process reads them itself, at the disk's speed.
#ifndef CKPTD_STORAGE_COMMIT_DISK_FILE_H_
#define CKPTD_STORAGE_COMMIT_DISK_FILE_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "storage/fs/file_system.h"

namespace ckptd {

// A slice of a file, and where it goes.
struct FilePiece {
  int64_t offset = 0;
  std::span<std::byte> into;
};

// As ReadVerified, by the reader of storage/io/verified_read.h where `fs` is a real one: from `offset` on
// into `runs`, one behind the other. `threads` may compute at once. Soon after *stop is not 0 it ends with
// CANCELLED; null: never.
absl::Status ReadFromDisk(FileSystem& fs, Handle checkpoint_dir, const storage::v1::FileRecord& record,
                          int32_t chunk_bytes, int64_t offset, std::span<const std::span<std::byte>> runs,
                          int threads, const int32_t* stop = nullptr);

// The same of pieces in the order of the file, none over another: each chunk that they touch is read once.
// *done grows by the bytes of chunks that are read; null: nobody looks.
absl::Status ReadFromDisk(FileSystem& fs, Handle checkpoint_dir, const storage::v1::FileRecord& record,
                          int32_t chunk_bytes, std::span<const FilePiece> pieces, int threads,
                          const int32_t* stop = nullptr, uint64_t* done = nullptr);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_COMMIT_DISK_FILE_H_
