// Tries on several nodes at once what ckptd needs of a folder that they share (docs/design.md, Several nodes).
#ifndef CKPTD_STORAGE_COMMIT_SHARED_TRIALS_TRIALS_H_
#define CKPTD_STORAGE_COMMIT_SHARED_TRIALS_TRIALS_H_

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/base/clock.h"
#include "storage/base/finding.h"
#include "storage/commit/shared/run/look_again.h"
#include "storage/commit/shared/trials/meeting.h"
#include "storage/commit/shared/trials/node_files.h"

namespace ckptd {

struct TrialSettings {
  int rounds = 5;          // How often each delay is measured, from each node to each other one.
  int races = 5;           // How often all nodes rename one file at once.
  int replacements = 100;  // How often a file is replaced while the other nodes read it.
  int writers = 0;  // How many nodes make the changes that all others look for; 0: each of them in turn.
  std::chrono::milliseconds look = std::chrono::seconds(30);  // How long a delay is measured.
};

// What is known of one node beside the trials.
struct NodeFacts {
  // Where the folder is. Unset: it is not compared.
  struct Mounted {
    std::string type, source;  // "nfs4", "server:/export"
    std::string caching;       // The options that say for how long names, attributes and data are cached.
    bool is_local = false;     // Only processes of one machine can have this file system.
  };
  std::optional<Mounted> mounted;
  // Of the configuration of its daemon. Unset: it did not tell, because of `no_daemon`.
  struct Daemon {
    bool shares = false;               // The root is in one of its shared folders.
    Duration visibility = kStaleness;  // For how long it looks again at what seems missing.
  };
  std::optional<Daemon> daemon;
  std::string no_daemon;
};

// What one node has found, a line each; fields are separated by tabs.
using Records = std::vector<std::string>;

// Takes part in all trials. All nodes call it at the same time with the same settings. `clock` measures the
// delays, and how long they are measured.
absl::StatusOr<Records> RunTrials(NodeFiles* files, Meeting* meeting, Clock* clock,
                                  const TrialSettings& settings, const NodeFacts& facts);

// What the records of all nodes say; the same on all of them.
std::vector<Finding> JudgeTrials(const Records& records, const TrialSettings& settings);
// Whether the finding is of how late a node sees a change; and whether it is of the daemons' configurations.
bool IsOfDelay(const Finding& finding);
bool IsOfConfiguration(const Finding& finding);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_COMMIT_SHARED_TRIALS_TRIALS_H_
