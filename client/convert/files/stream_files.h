// Writes files that consist of ranges of other files, as they are or with their elements cast to another
// type, at the disk's speed and in bounded memory: many reads and writes are in flight at once, with direct
// I/O where the file system allows it. Files are allocated, written, cut to size and synced. Their names are
// durable only after the caller has synced the directories.
#ifndef CKPTD_CLIENT_CONVERT_FILES_STREAM_FILES_H_
#define CKPTD_CLIENT_CONVERT_FILES_STREAM_FILES_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/formats/cast.h"
#include "storage/fs/file_system.h"
#include "storage/io/io_queue.h"

namespace ckptd {

// The source of `size` bytes at `offset` of a planned file.
struct Piece {
  static constexpr int kLiteral = -1;

  int64_t offset = 0;
  int64_t size = 0;
  int input = kLiteral;  // The index of an input file, or kLiteral for the planned file's `literals`.
  int64_t from = 0;      // The offset of the bytes in that source.
  Cast cast = {};  // Of the elements; not for literals. `offset` and `size` are multiples of its output.
};

// Pieces are ordered by their offsets and do not overlap. Bytes that no piece covers are zeros.
struct PlannedFile {
  std::string path;  // Relative to the output directory. Its parent directory exists.
  int64_t size = 0;
  std::string literals;
  std::vector<Piece> pieces;
};

struct StreamOptions {
  IoQueueFactory queue;
  bool direct_writes = true;      // Write with O_DIRECT. Reads always try it.
  int64_t chunk_bytes = 4 << 20;  // The size of one write; a multiple of 4096.
  int depth = 16;  // Chunks in flight, each reading or writing. Memory is 2.3 times their bytes.
};

// Writes `files` beneath `out` from `inputs` beneath `in`. Blocks. Calls `progress` with the bytes written so
// far, at least several times a second; if it returns false, the result is ABORTED, reason INTERRUPTED.
// Errors name the file in the detail "path". An input that is too short is DATA_LOSS, reason SHORT_FILE.
// After an error the caller removes what was written.
absl::Status StreamFiles(FileSystem& fs, Handle in, const std::vector<std::string>& inputs, Handle out,
                         const std::vector<PlannedFile>& files, const StreamOptions& options,
                         const std::function<bool(int64_t bytes)>& progress);

}  // namespace ckptd
#endif  // CKPTD_CLIENT_CONVERT_FILES_STREAM_FILES_H_
