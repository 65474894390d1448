// One checkpoint's directory, wherever it lies (at its tag, in flight, in trash): its manifest, its part
// records, its files.
#ifndef CKPTD_STORAGE_COMMIT_CHECKPOINT_DIR_H_
#define CKPTD_STORAGE_COMMIT_CHECKPOINT_DIR_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "storage/format/manifest.h"
#include "storage/fs/file_system.h"

namespace ckptd {

// "<directory>/.ckptd/<name>"; ".ckptd/<name>" when `directory` is empty.
std::string OurPath(const std::string& directory, const std::string& name);

// The manifest of `dir`/`directory` (empty: of `dir` itself). ENOENT when there is none; DATA_LOSS, reason
// CORRUPT_MANIFEST, when it is damaged. The summary alone costs one read of 4 KiB, and the file's size is
// held against what the head says.
absl::StatusOr<storage::v1::ManifestSummary> ReadSummary(FileSystem& fs, Handle dir,
                                                         const std::string& directory);
absl::StatusOr<Manifest> ReadWholeManifest(FileSystem& fs, Handle dir, const std::string& directory);

// ENOENT when there is none; DATA_LOSS, reason CORRUPT_PART_RECORD, when it is damaged or another rank's.
absl::StatusOr<storage::v1::PartRecord> ReadPartRecord(FileSystem& fs, Handle dir, int rank);

// Whether every file of a record is there, as a regular file of that size: else DATA_LOSS, reason SHORT_FILE,
// naming it.
absl::Status CheckFiles(FileSystem& fs, Handle dir,
                        const google::protobuf::RepeatedPtrField<storage::v1::FileRecord>& files);

// Sum of the sizes of the files in a tree, for counting what removing it will free. Looks at no more than
// 100,000 names and 32 levels (kMaxOpenLevels, storage/fs/file_system.h) and leaves the rest out: the tree is
// a user's, who can put more into it than anybody should wait for.
absl::StatusOr<int64_t> TreeBytes(FileSystem& fs, Handle dir);

// Whether an error says that a name is not there, or that something on the way to it is no directory of ours.
bool IsMissing(const absl::Status& status);   // ENOENT.
bool IsInTheWay(const absl::Status& status);  // ENOTDIR, ELOOP (a symbolic link), EISDIR.

}  // namespace ckptd
#endif  // CKPTD_STORAGE_COMMIT_CHECKPOINT_DIR_H_
