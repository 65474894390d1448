// Tries on several nodes at once what ckptd needs of a folder that they share (docs/design.md, Several nodes).
#ifndef CKPTD_CLIENT_CKPTCTL_NODES_TRIALS_H_
#define CKPTD_CLIENT_CKPTCTL_NODES_TRIALS_H_

#include <chrono>
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
  int rounds = 5;                 // How often each delay is measured, from each node to each other one.
  int races = 5;                  // How often all nodes rename one file at once.
  int replacements = 100;         // How often a file is replaced while the other nodes read it.
  Duration allowed = kStaleness;  // For which the daemons wait.
  std::chrono::milliseconds look = std::chrono::seconds(30);  // How long a delay is measured.
};

// What one node has found, a line each; fields are separated by tabs.
using Records = std::vector<std::string>;

// Takes part in all trials. All nodes call it at the same time with the same settings.
absl::StatusOr<Records> RunTrials(NodeFiles* files, Meeting* meeting, const TrialSettings& settings,
                                  const std::string& root, const Mount& mount);

// What the records of all nodes say; the same on all of them.
std::vector<Finding> JudgeTrials(const Records& records, const TrialSettings& settings);

}  // namespace ckptd::ctl
#endif  // CKPTD_CLIENT_CKPTCTL_NODES_TRIALS_H_
