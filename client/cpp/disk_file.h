// Files of a checkpoint as this process reads them itself.
#ifndef CKPTD_CLIENT_CPP_DISK_FILE_H_
#define CKPTD_CLIENT_CPP_DISK_FILE_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "storage/fs/file_system.h"

namespace ckptd::client {

// As ckptd::ReadVerified, at the disk's speed. `fs` is the real one.
absl::Status ReadFromDisk(FileSystem& fs, Handle checkpoint_dir, const storage::v1::FileRecord& record,
                          int32_t chunk_bytes, int64_t offset, std::span<std::byte> into, int threads);

}  // namespace ckptd::client
#endif  // CKPTD_CLIENT_CPP_DISK_FILE_H_
