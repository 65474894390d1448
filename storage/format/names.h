// Names: what a tag and a file path may be, and where everything of ours lies. The only place that knows
// these strings.
#ifndef CKPTD_STORAGE_FORMAT_NAMES_H_
#define CKPTD_STORAGE_FORMAT_NAMES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace ckptd {

// 1 to 200 characters of [A-Za-z0-9._=+,@-], the first not `.` or `-`; not "latest".
// INVALID_ARGUMENT, reason INVALID_TAG, naming the value (escaped) and the rule it breaks.
absl::Status CheckTag(std::string_view tag);
// 1 to 1000 bytes, relative; components of 1 to 255 bytes without NUL, control characters or invalid UTF-8,
// none `.` or `..`; the first not `.ckptd`. INVALID_ARGUMENT, reason INVALID_PATH.
absl::Status CheckFilePath(std::string_view path);
// A pointer file's name in the root: a file path of one component. INVALID_ARGUMENT, reason INVALID_POINTER.
absl::Status CheckPointerName(std::string_view name);
// The pointers of one save of `tag`, name -> content: at most kMostPointers, each with a good name that is
// not the tag and a content that is not empty, together at most kMostPointerBytes (names and contents), so
// that they fit beside the largest metrics into a manifest's head. INVALID_ARGUMENT, reason INVALID_POINTER.
inline constexpr size_t kMostPointers = 8;
inline constexpr size_t kMostPointerBytes = 1024;
absl::Status CheckPointers(std::string_view tag, const std::map<std::string, std::string>& pointers);
// Parent directories of a path, outermost first: "a/b/c.pt" gives "a", "a/b".
std::vector<std::string> ParentDirectories(std::string_view path);

// In the root, and in every checkpoint's directory.
inline constexpr std::string_view kOurDirectory = ".ckptd";
inline constexpr std::string_view kManifestName = "manifest";  // In <tag>/.ckptd/.
inline constexpr std::string_view kPinsName = "pins";          // In <root>/.ckptd/.
inline constexpr std::string_view kDamagedName = "damaged";    // In <root>/.ckptd/.
inline constexpr std::string_view kNodesDirectory = "nodes";   // In <root>/.ckptd/.
// In a node's directory.
inline constexpr std::string_view kLockName = "lock";
inline constexpr std::string_view kRunName = "run";
inline constexpr std::string_view kSwapName = "swap";
inline constexpr std::string_view kPointerTempName = "pointer.new";  // A pointer file that is being written.
inline constexpr std::string_view kInflightDirectory = "inflight";
inline constexpr std::string_view kTrashDirectory = "trash";
inline constexpr std::string_view kScratchDirectory = "scratch";  // For the probe; empty otherwise.
std::string PartRecordName(int rank);                             // "part-00000".
std::optional<int> ParsePartRecordName(std::string_view name);
std::string NodeDirectory(std::string_view node);  // ".ckptd/nodes/<node>".
// "<tag>.<sequence>.<16 hex digits>", under inflight/ and trash/: never used again, see docs/design.md.
std::string InflightName(std::string_view tag, int64_t sequence, uint64_t unique);
struct InflightId {
  std::string tag;
  int64_t sequence;
};
std::optional<InflightId> ParseInflightName(std::string_view name);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_FORMAT_NAMES_H_
