// The trials that the daemons of a run make by themselves when a node is new to a root, and the record of them.
//
//   <root>/.ckptd/shared/trial.<attempt>.<n>/   where the nodes meet, only during the trials
//   <root>/.ckptd/shared/tried                  which nodes have found the file system suitable, and when
#ifndef CKPTD_STORAGE_COMMIT_SHARED_TRIALS_TRY_NODES_H_
#define CKPTD_STORAGE_COMMIT_SHARED_TRIALS_TRY_NODES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/base/clock.h"
#include "storage/base/finding.h"
#include "storage/fs/file_system.h"

namespace ckptd {

// How many nodes of a run take part. The trials load the file server with the number of nodes squared, and what
// they try is mostly the file system's.
inline constexpr size_t kMostTryingNodes = 8;

struct NodesToTry {
  std::string self;
  std::vector<std::string> nodes;                // All that take part, and only they; sorted.
  int64_t attempt = 0;                           // Of the run.
  Duration visibility{};                         // For how long names and sizes may be old.
  Duration patience = std::chrono::seconds(20);  // With a node that does not come, or says nothing.
  Duration longest = std::chrono::minutes(2);    // For all of it.
  std::function<bool()> stopped = nullptr;       // Null: never. Called on the thread that tries.
};

struct NodesTried {
  bool before = false;  // An earlier trial had all these nodes, and nothing was tried.
  // Why several nodes cannot use the root. Empty: they can.
  std::vector<Finding> unsuitable;
  // Wrong, too, but nodes that are configured so have used roots before.
  std::vector<Finding> doubtful;
};

// Blocks, for some seconds, and longer if a node is late. All nodes call it at about the same time, and get the same
// answer. `root` has been opened as a root of several nodes. An error says nothing of the root: the trials could not
// be made, or have ended early.
absl::StatusOr<NodesTried> TryNodes(FileSystem& fs, Handle root, Clock& clock, const NodesToTry& trying);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_COMMIT_SHARED_TRIALS_TRY_NODES_H_
