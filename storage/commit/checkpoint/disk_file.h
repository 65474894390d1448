// Reads a checkpoint's files within this process, at the disk's speed.
#ifndef CKPTD_STORAGE_COMMIT_CHECKPOINT_DISK_FILE_H_
#define CKPTD_STORAGE_COMMIT_CHECKPOINT_DISK_FILE_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "storage/fs/file_system.h"

namespace ckptd {

// A slice of a file and its destination.
struct FilePiece {
  int64_t offset = 0;
  std::span<std::byte> into;
};

// Like ReadVerified, but with the fast reader of storage/io/verified_read.h if `fs` is the kernel's. Reads
// from `offset` on into `runs`, one after the other, with up to `threads` threads. Ends with CANCELLED soon
// after *stop becomes nonzero; `stop` may be null.
absl::Status ReadFromDisk(FileSystem& fs, Handle checkpoint_dir, const storage::v1::FileRecord& record,
                          int32_t chunk_bytes, int64_t offset, std::span<const std::span<std::byte>> runs,
                          int threads, const int32_t* stop = nullptr);

// The same for pieces with ascending offsets and no overlap. Each chunk that they touch is read once. *done
// grows by the bytes of the chunks that were read; it may be null.
absl::Status ReadFromDisk(FileSystem& fs, Handle checkpoint_dir, const storage::v1::FileRecord& record,
                          int32_t chunk_bytes, std::span<const FilePiece> pieces, int threads,
                          const int32_t* stop = nullptr, uint64_t* done = nullptr);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_COMMIT_CHECKPOINT_DISK_FILE_H_
