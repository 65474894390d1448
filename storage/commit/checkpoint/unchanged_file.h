// Finds out whether a committed checkpoint has the bytes of a file that is to be saved.
#ifndef CKPTD_STORAGE_COMMIT_CHECKPOINT_UNCHANGED_FILE_H_
#define CKPTD_STORAGE_COMMIT_CHECKPOINT_UNCHANGED_FILE_H_

#include <cstdint>

#include "ckptd/storage/v1/storage.pb.h"
#include "storage/fs/file_system.h"
#include "storage/io/part_writer.h"

namespace ckptd {

// Opens the file of `record`, of the checkpoint in `checkpoint_dir`, if it has exactly the bytes of `image` on the
// disk. Compares the image's checksums with the record first, which tells a file that has changed without any
// reading, mostly at its first chunk; then reads the file, with up to `threads` threads, and compares each byte:
// equal checksums alone do not prove equal bytes, and the file may have been damaged or changed since it was
// written. No handle: the bytes differ, or this could not be found out. Blocks; ends soon after *stop becomes
// nonzero.
ScopedHandle OpenIfUnchanged(FileSystem& fs, Handle checkpoint_dir, const storage::v1::FileRecord& record,
                             int32_t chunk_bytes, const FileImage& image, int threads, const int32_t* stop);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_COMMIT_CHECKPOINT_UNCHANGED_FILE_H_
