// The files of a part that an earlier checkpoint has with the same bytes: they are shared with it, not written.
#ifndef CKPTD_DAEMON_ROOT_IO_COMMON_UNCHANGED_FILES_H_
#define CKPTD_DAEMON_ROOT_IO_COMMON_UNCHANGED_FILES_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/root_io/common/disk_checkpoint_reader.h"
#include "storage/fs/file_system.h"
#include "storage/io/part_writer.h"

namespace ckptd {

// Find, then Share, then, when the other files are written, AllOf. Used on one thread at a time.
class UnchangedFiles {
 public:
  // Smaller files are written: that costs no more than to look.
  static constexpr int64_t kLeastBytes = 64 << 10;

  // None.
  UnchangedFiles() = default;
  // Compares the files with those of `base` as OpenIfUnchanged does. Blocks for as long as reading what is
  // unchanged takes; ends soon after *stop becomes nonzero.
  static UnchangedFiles Find(const DiskCheckpointReader& base, const std::vector<FileImage>& files,
                             int32_t chunk_bytes, const int32_t* stop);

  // Makes these files in `dir`, durably but for their names, and returns the others, which are to be written:
  // also those that the file system cannot share. Adds to `written_bytes` as PartWriter does. `files`: as for
  // Find. An error is one that fails the part.
  absl::StatusOr<std::vector<FileImage>> Share(FileSystem& fs, Handle dir, std::vector<FileImage> files,
                                               std::atomic<int64_t>* written_bytes);
  // All files of the part, in its order: those that were shared, and those that were written.
  std::vector<WrittenFile> AllOf(std::vector<WrittenFile> written) &&;

 private:
  struct Unchanged {
    ScopedHandle file;  // Of the earlier checkpoint.
    WrittenFile record;
  };
  std::map<size_t, Unchanged> files_;  // By the file's number in the part.
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ROOT_IO_COMMON_UNCHANGED_FILES_H_
