// Checks checkpoints on disk against their manifests, without a daemon: sizes, every chunk's CRC32C, part
// records, names. Reads only.
#ifndef CKPTD_STORAGE_COMMIT_VERIFY_H_
#define CKPTD_STORAGE_COMMIT_VERIFY_H_

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/format/manifest.h"
#include "storage/fs/file_system.h"

namespace ckptd {

struct VerifyProblem {
  std::string path;     // Empty: the checkpoint as a whole.
  int64_t chunk = -1;   // -1: not one chunk.
  std::string message;  // "chunk 3 (bytes 25165824 to 33554431): CRC32C is 0x..., the manifest has 0x..."
};

struct VerifyReport {
  std::string tag;
  Manifest manifest;  // Empty when it could not be read; then a problem says so.
  int64_t verified_bytes = 0;
  std::vector<VerifyProblem> problems;
};

// `progress` hears of verified bytes from time to time; may be null. Saves and retention may go on: a
// checkpoint that was replaced meanwhile is verified anew. An error only when the tag is not there at all, or
// no more (NOT_FOUND), or was replaced again and again (ABORTED, reason CHECKPOINT_REPLACED).
absl::StatusOr<VerifyReport> VerifyCheckpoint(FileSystem& fs, Handle root, const std::string& tag,
                                              const std::function<void(int64_t bytes)>& progress = nullptr);

struct RootListing {
  std::vector<storage::v1::ManifestSummary> checkpoints;      // By sequence, newest first.
  std::vector<std::pair<std::string, absl::Status>> damaged;  // Our directories with an unreadable manifest.
};
// Committed checkpoints of a root, from their manifests alone.
absl::StatusOr<RootListing> ListRoot(FileSystem& fs, Handle root);

// Reads [offset, offset + size) of a file of a checkpoint and checks every chunk that it touches. DATA_LOSS,
// reason CORRUPT_FILE, with details path, chunk, expected, found.
absl::Status ReadVerified(FileSystem& fs, Handle checkpoint_dir, const storage::v1::FileRecord& record,
                          int32_t chunk_bytes, int64_t offset, std::span<std::byte> into);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_COMMIT_VERIFY_H_
