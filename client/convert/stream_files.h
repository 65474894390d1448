// Writes files that are made of ranges of other files, at the disk's speed and in bounded memory: reads and
// writes in flight at once, past the page cache where the file system allows it. Files are allocated,
// written, cut to size and synced; their names are not durable until the caller syncs the directories.
#ifndef CKPTD_CLIENT_CONVERT_STREAM_FILES_H_
#define CKPTD_CLIENT_CONVERT_STREAM_FILES_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "storage/fs/file_system.h"
#include "storage/io/io_queue.h"

namespace ckptd {

// `size` bytes at `offset` of a planned file.
struct Piece {
  static constexpr int kLiteral = -1;

  int64_t offset = 0;
  int64_t size = 0;
  int input = kLiteral;  // The number of an input file; kLiteral: the planned file's `literals`.
  int64_t from = 0;      // Where the bytes are there.
};

// Pieces are in the order of their offsets, and none lies over another. What none covers is zeros.
struct PlannedFile {
  std::string path;  // Beneath the output directory; directories above it exist.
  int64_t size = 0;
  std::string literals;
  std::vector<Piece> pieces;
};

struct StreamOptions {
  IoQueueFactory queue;
  bool direct_writes = true;      // O_DIRECT. Reads are tried with it always.
  int64_t chunk_bytes = 4 << 20;  // A multiple of 4096: what is written at once.
  int depth = 16;  // Chunks under way, each with its reads or its write. Memory is 2.3 times their bytes.
};

// Blocks. `progress` hears of the bytes written so far, several times a second at least, and says whether to
// go on; when not, the result is ABORTED, reason INTERRUPTED. Inputs are opened for reading beneath `in`.
// Errors name the file in their detail "path"; an input that ends early is DATA_LOSS, reason SHORT_FILE.
// What was written before an error is the caller's to remove.
absl::Status StreamFiles(FileSystem& fs, Handle in, const std::vector<std::string>& inputs, Handle out,
                         const std::vector<PlannedFile>& files, const StreamOptions& options,
                         const std::function<bool(int64_t bytes)>& progress);

}  // namespace ckptd
#endif  // CKPTD_CLIENT_CONVERT_STREAM_FILES_H_
