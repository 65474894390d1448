// Tries on several nodes at once what ckptd needs of a folder that they share (docs/design.md, Several nodes).
#ifndef CKPTD_CLIENT_CKPTCTL_NODES_TRIALS_H_
#define CKPTD_CLIENT_CKPTCTL_NODES_TRIALS_H_

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/ckptctl/nodes/meeting.h"
#include "client/ckptctl/nodes/mount.h"
#include "client/ckptctl/nodes/node_files.h"
#include "client/ckptctl/text/finding.h"
#include "storage/base/clock.h"
#include "storage/commit/shared/run/look_again.h"

namespace ckptd::ctl {

struct TrialSettings {
  int rounds = 5;          // How often each delay is measured, from each node to each other one.
  int races = 5;           // How often all nodes rename one file at once.
  int replacements = 100;  // How often a file is replaced while the other nodes read it.
  std::chrono::milliseconds look = std::chrono::seconds(30);  // How long a delay is measured.
};

// What is known of one node beside the trials.
struct NodeFacts {
  Mount mount;
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
                                  const TrialSettings& settings, const std::string& root,
                                  const NodeFacts& facts);

// What the records of all nodes say; the same on all of them.
std::vector<Finding> JudgeTrials(const Records& records, const TrialSettings& settings);

}  // namespace ckptd::ctl
#endif  // CKPTD_CLIENT_CKPTCTL_NODES_TRIALS_H_
