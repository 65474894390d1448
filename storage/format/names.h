// Names: which tags and file paths are valid, and where ckptd's own files are. No other file has these
// strings.
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

// A tag has 1 to 200 characters of [A-Za-z0-9._=+,@-], does not begin with `.` or `-`, and is not "latest".
// INVALID_ARGUMENT, reason INVALID_TAG, names the value (escaped) and the violated rule.
absl::Status CheckTag(std::string_view tag);
// A file path is relative and has 1 to 1000 bytes. Its components have 1 to 255 bytes of valid UTF-8 without
// control characters; none is `.` or `..`, and the first is not `.ckptd`. INVALID_ARGUMENT, reason
// INVALID_PATH.
absl::Status CheckFilePath(std::string_view path);
// A pointer file's name in the root is a file path of one component. INVALID_ARGUMENT, reason
// INVALID_POINTER.
absl::Status CheckPointerName(std::string_view name);
// Checks the pointers of one save of `tag`, name -> content: at most kMaxPointers, each with a valid name
// other than the tag and a content that is not empty, and at most kMaxPointerBytes for all names and
// contents, so that they fit into a manifest's head beside the largest metrics. INVALID_ARGUMENT, reason
// INVALID_POINTER.
inline constexpr size_t kMaxPointers = 8;
inline constexpr size_t kMaxPointerBytes = 1024;
// The longest ManifestSummary.suspect.
inline constexpr size_t kMaxSuspectBytes = 300;
absl::Status CheckPointers(std::string_view tag, const std::map<std::string, std::string>& pointers);
// The parent directories of a path, outermost first: "a", "a/b" for "a/b/c.pt".
std::vector<std::string> ParentDirectories(std::string_view path);

// ckptd's own directory, in the root and in every checkpoint's directory.
inline constexpr std::string_view kOurDirectory = ".ckptd";
inline constexpr std::string_view kManifestName = "manifest";  // In <tag>/.ckptd/.
inline constexpr std::string_view kPinsName = "pins";          // In <root>/.ckptd/.
inline constexpr std::string_view kDamagedName = "damaged";    // In <root>/.ckptd/.
inline constexpr std::string_view kNodesDirectory = "nodes";   // In <root>/.ckptd/.
inline constexpr std::string_view kSharedDirectory =
    "shared";  // In <root>/.ckptd/, of roots of several nodes.
// In a node's directory.
inline constexpr std::string_view kLockName = "lock";
inline constexpr std::string_view kRunName = "run";
inline constexpr std::string_view kSwapName = "swap";
inline constexpr std::string_view kPointerTempName = "pointer.new";  // A pointer file that is being written.
inline constexpr std::string_view kInflightDirectory = "inflight";
inline constexpr std::string_view kTrashDirectory = "trash";
inline constexpr std::string_view kRunDirectory =
    "run";  // Of a shared root: see storage/commit/shared/run/shared_run_id.cc.
inline constexpr std::string_view kScratchDirectory = "scratch";  // For the probe; empty otherwise.
std::string PartRecordName(int rank);                             // "part-00000".
std::optional<int> ParsePartRecordName(std::string_view name);
std::string NodeDirectory(std::string_view node);  // ".ckptd/nodes/<node>".
// In <tag>/.ckptd/, of saves of several nodes. "node.<node>.<digest>": the record of a node's part.
std::string NodePartRecordName(std::string_view node, std::string_view digest);
// "new.<node>.<16 hex digits>": the files of a node whose earlier daemon had begun to write them.
std::string NewFilesName(std::string_view node, uint64_t unique);
bool IsNewFilesName(std::string_view name, std::string_view node);
// In <root>/.ckptd/shared/. "record.<term>": a term is at least 1.
std::string SharedRecordName(int64_t term);
std::optional<int64_t> ParseSharedRecordName(std::string_view name);
// There, too. "term.<term>": where the coordinator of that term makes files that get other names.
std::string TermName(int64_t term);
std::optional<int64_t> ParseTermName(std::string_view name);
// "<tag>.<sequence>.<16 hex digits>", beneath inflight/ and trash/. A name is never used twice;
// docs/design.md says why.
std::string InflightName(std::string_view tag, int64_t sequence, uint64_t unique);
struct InflightId {
  std::string tag;
  int64_t sequence;
};
std::optional<InflightId> ParseInflightName(std::string_view name);
// ".ckptd.removed.<sequence>": what `.ckptd` is called in a checkpoint of several nodes that is being
// removed.
std::string RemovedName(int64_t sequence);
std::optional<int64_t> ParseRemovedName(std::string_view name);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_FORMAT_NAMES_H_
