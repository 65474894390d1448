// One checkpoint's directory, at its tag, in flight or in trash: its manifest, its part records and its
// files.
#ifndef CKPTD_STORAGE_COMMIT_CHECKPOINT_CHECKPOINT_DIR_H_
#define CKPTD_STORAGE_COMMIT_CHECKPOINT_CHECKPOINT_DIR_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "storage/format/manifest.h"
#include "storage/fs/file_system.h"

namespace ckptd {

// "<directory>/.ckptd/<name>", or ".ckptd/<name>" if `directory` is empty.
std::string OurPath(const std::string& directory, const std::string& name);

// The manifest of `dir`/`directory`, or of `dir` itself if `directory` is empty. ENOENT if there is none.
// DATA_LOSS, reason CORRUPT_MANIFEST, if it is damaged. ReadSummary reads only 4 KiB, and compares the file's
// size with the one in the head.
absl::StatusOr<storage::v1::ManifestSummary> ReadSummary(FileSystem& fs, Handle dir,
                                                         const std::string& directory);
absl::StatusOr<Manifest> ReadWholeManifest(FileSystem& fs, Handle dir, const std::string& directory);

// Removes the manifest of such a directory, durably: from then on nobody takes it for a whole checkpoint. OK
// if there is none.
absl::Status RemoveManifest(FileSystem& fs, Handle dir, const std::string& directory);

// ENOENT if there is none. DATA_LOSS, reason CORRUPT_PART_RECORD, if it is damaged or of another rank.
absl::StatusOr<storage::v1::PartRecord> ReadPartRecord(FileSystem& fs, Handle dir, int rank);

// Checks that every file of a record is a regular file of the recorded size. Otherwise DATA_LOSS, reason
// SHORT_FILE, names it.
absl::Status CheckFiles(FileSystem& fs, Handle dir,
                        const google::protobuf::RepeatedPtrField<storage::v1::FileRecord>& files);

// The sum of the file sizes in a tree: what removing it will free. Looks at no more than 100,000 names and 32
// levels (kMaxOpenLevels of storage/fs/file_system.h) and leaves out the rest: a user can fill the tree with
// more than anybody should wait for.
absl::StatusOr<int64_t> TreeBytes(FileSystem& fs, Handle dir);

// True if the error says that the name does not exist.
bool IsMissing(const absl::Status& status);  // ENOENT.
// True if the error says that something on the path is no directory of ckptd's.
bool IsInTheWay(const absl::Status& status);  // ENOTDIR, ELOOP (a symbolic link), EISDIR.

}  // namespace ckptd
#endif  // CKPTD_STORAGE_COMMIT_CHECKPOINT_CHECKPOINT_DIR_H_
