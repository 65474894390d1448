// Finds the checkpoints of a root. Reads only the heads of their manifests, 4 KiB each.
#ifndef CKPTD_STORAGE_COMMIT_CHECKPOINT_SCAN_H_
#define CKPTD_STORAGE_COMMIT_CHECKPOINT_SCAN_H_

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "storage/fs/file_system.h"

namespace ckptd {

// A finished checkpoint of another program: a directory that is not ckptd's and holds that program's marker.
// So far that is NeuronX Distributed's file `done`.
struct ForeignTag {
  std::string tag;
  int64_t done_us = 0;  // When the marker was last written; Unix time in microseconds.
  // That program's order: by the marker's time. Names break ties, where the program's own order is undefined.
  auto operator<=>(const ForeignTag& other) const {
    return std::tie(done_us, tag) <=> std::tie(other.done_us, other.tag);
  }
  bool operator==(const ForeignTag& other) const = default;
};
int64_t MarkerTime(const FileStat& marker);  // For `done_us`. 0 for times before 1970.
inline constexpr char kForeignMarker[] = "done";
inline constexpr char kForeignFormat[] = "nxd";

struct RootScan {
  std::map<int64_t, storage::v1::ManifestSummary> checkpoints;  // By sequence.
  // The tag, and what is wrong with its manifest: damaged, missing, of another directory, of a newer format,
  // or not readable by this user.
  std::vector<std::pair<std::string, absl::Status>> damaged;
  std::vector<ForeignTag> foreign;    // Oldest first. Includes names that are no valid tags of ckptd.
  std::set<std::string> directories;  // The names of all directories, whoever made them.
};

// Of two checkpoints with one sequence, which happens when one was moved in from another root, `is_known`
// says which one this run has saved; without it, or if it knows neither, the first by name is listed. The
// other one is in `damaged`. Skips whatever is not ckptd's. Fails if something could not be found out
// (CouldNotFindOut of storage/base/errors.h): a checkpoint must not vanish from the list for such a reason.
absl::StatusOr<RootScan> ScanRoot(
    FileSystem& fs, Handle root,
    const std::function<bool(const std::string& tag, int64_t sequence)>& is_known = nullptr);

// The checkpoints among the directories of the root whose names are not among `known`. Best effort: what
// cannot be read now is found by the next scan. An empty directory, as frameworks make it before they save,
// is no checkpoint, nor is one of another user that this one may not read, such as lost+found.
struct NewCheckpoints {
  bool any = false;
  int64_t highest_sequence = 0;  // 0: none can be read.
};
NewCheckpoints FindNewCheckpoints(FileSystem& fs, Handle root, const std::set<std::string>& known);

// What exists at a tag's name.
enum class TargetKind {
  kNothing,
  kEmptyDirectory,  // Frameworks make them before saving.
  kCheckpoint,      // ckptd's own, with a valid manifest of that tag.
  kForeign,         // Anything else. Never touched.
};
struct Target {
  TargetKind kind;
  storage::v1::ManifestSummary summary;  // Set with kCheckpoint.
  std::string what;  // Set with kForeign: "a file", "a directory whose manifest is damaged", ...
};
absl::StatusOr<Target> InspectTarget(FileSystem& fs, Handle root, const std::string& tag);
// ALREADY_EXISTS, reason TAG_FOREIGN: at the tag exists `what`, which is not ckptd's.
absl::Status TagForeignError(const std::string& tag, const std::string& what);
// ALREADY_EXISTS, reason TAG_TAKEN: the checkpoint of this sequence has the tag.
absl::Status TagTakenError(const std::string& tag, int64_t sequence);

// OK if a pointer file may be written at `name`: nothing exists there, or a file, or a symbolic link, which
// is replaced and not followed. Otherwise ALREADY_EXISTS, reason POINTER_FOREIGN.
absl::Status CheckPointerTarget(FileSystem& fs, Handle root, const std::string& name);
absl::Status CheckPointerTargets(FileSystem& fs, Handle root, const std::vector<std::string>& names);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_COMMIT_CHECKPOINT_SCAN_H_
