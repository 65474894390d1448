// Which checkpoints a root holds, from the heads of their manifests alone: 4 KiB a checkpoint.
#ifndef CKPTD_STORAGE_COMMIT_SCAN_H_
#define CKPTD_STORAGE_COMMIT_SCAN_H_

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "storage/fs/file_system.h"

namespace ckptd {

// A finished checkpoint of another program: a directory that is none of ours and has its marker. So far that
// is NeuronX Distributed's, a file `done`.
struct ForeignTag {
  std::string tag;
  int64_t done_us = 0;  // Unix time in microseconds of the marker's last write.
  // That program's order: the marker's time. (Those of one time go by their names; it takes them as they
  // come.)
  auto operator<=>(const ForeignTag& other) const {
    return std::tie(done_us, tag) <=> std::tie(other.done_us, other.tag);
  }
  bool operator==(const ForeignTag& other) const = default;
};
int64_t MarkerTime(const FileStat& marker);  // As `done_us`; 0 for what is from before 1970.
inline constexpr char kForeignMarker[] = "done";
inline constexpr char kForeignFormat[] = "nxd";

struct RootScan {
  std::map<int64_t, storage::v1::ManifestSummary> checkpoints;  // By sequence.
  // Tag and what is wrong: a manifest that is damaged, gone, of another directory, of a newer format, or that
  // may not be read.
  std::vector<std::pair<std::string, absl::Status>> damaged;
  std::vector<ForeignTag> foreign;  // Oldest first. Also those whose name no tag of ours may have.
};

// Anything in the root that is not ours is passed over. Fails when it cannot find out (CouldNotFindOut in
// storage/base/errors.h): a checkpoint must never vanish from the list for such a reason.
absl::StatusOr<RootScan> ScanRoot(FileSystem& fs, Handle root);

// What the name of a checkpoint is taken by.
enum class TargetKind {
  kNothing,
  kEmptyDirectory,  // Frameworks make them beforehand.
  kCheckpoint,      // Our own, with a valid manifest of that tag.
  kForeign,         // Anything else: never touched.
};
struct Target {
  TargetKind kind;
  storage::v1::ManifestSummary summary;  // With kCheckpoint.
  std::string what;  // With kForeign: "a file", "a directory whose manifest is damaged", ...
};
absl::StatusOr<Target> InspectTarget(FileSystem& fs, Handle root, const std::string& tag);
// ALREADY_EXISTS, reason TAG_FOREIGN: what is at the tag is not ours, it is `what`.
absl::Status TagForeignError(const std::string& tag, const std::string& what);

// Whether a pointer file may be written here: over nothing, a file, or a symbolic link, which is replaced and
// not followed. Else ALREADY_EXISTS, reason POINTER_FOREIGN.
absl::Status CheckPointerTarget(FileSystem& fs, Handle root, const std::string& name);
absl::Status CheckPointerTargets(FileSystem& fs, Handle root, const std::vector<std::string>& names);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_COMMIT_SCAN_H_
