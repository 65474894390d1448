// Checks checkpoints on disk against their manifests, without a daemon: sizes, the CRC32C of every chunk,
// part records (of ranks or of nodes), names. Only reads.
#ifndef CKPTD_STORAGE_COMMIT_CHECKPOINT_VERIFY_H_
#define CKPTD_STORAGE_COMMIT_CHECKPOINT_VERIFY_H_

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
  int64_t chunk = -1;   // -1: the problem is not with one chunk.
  std::string message;  // "chunk 3 (bytes 25165824 to 33554431): CRC32C is 0x..., the manifest has 0x..."
};

struct VerifyReport {
  std::string tag;
  Manifest manifest;  // Empty if it could not be read; then there is a problem that says so.
  int64_t verified_bytes = 0;
  std::vector<VerifyProblem> problems;
};

// Calls `progress`, which may be null, from time to time with the verified bytes. Saves and retention may go
// on: a checkpoint that is replaced meanwhile is verified again. Fails only if the tag does not exist or has
// vanished (NOT_FOUND), or if it was replaced too often (ABORTED, reason CHECKPOINT_REPLACED).
absl::StatusOr<VerifyReport> VerifyCheckpoint(FileSystem& fs, Handle root, const std::string& tag,
                                              const std::function<void(int64_t bytes)>& progress = nullptr);

// Compares the files of the checkpoint whose directory is `dir` with its manifest. Unlike VerifyCheckpoint it
// reads no part records and ignores the directory's name, so it also verifies a copy outside of a root.
// DATA_LOSS, reason CORRUPT_MANIFEST, if the manifest is damaged or missing; else the problems of the files
// are in the report. If `progress` returns false, the result is ABORTED, reason INTERRUPTED.
absl::StatusOr<VerifyReport> VerifyFiles(FileSystem& fs, Handle dir,
                                         const std::function<bool(int64_t total, int64_t bytes)>& progress);

struct RootListing {
  std::vector<storage::v1::ManifestSummary> checkpoints;      // By sequence, newest first.
  std::vector<std::pair<std::string, absl::Status>> damaged;  // Unreadable manifests.
};
// Lists the committed checkpoints of a root, from their manifests alone.
absl::StatusOr<RootListing> ListRoot(FileSystem& fs, Handle root);

// Reads [offset, offset + into.size()) of a checkpoint's file and checks every chunk that it touches.
// DATA_LOSS, reason CORRUPT_FILE, with the details path, chunk, expected and found.
absl::Status ReadVerified(FileSystem& fs, Handle checkpoint_dir, const storage::v1::FileRecord& record,
                          int32_t chunk_bytes, int64_t offset, std::span<std::byte> into);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_COMMIT_CHECKPOINT_VERIFY_H_
