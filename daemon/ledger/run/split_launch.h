// Detects that the nodes of one launch have different launch ids.
#ifndef CKPTD_DAEMON_LEDGER_RUN_SPLIT_LAUNCH_H_
#define CKPTD_DAEMON_LEDGER_RUN_SPLIT_LAUNCH_H_

#include <string>

#include "absl/status/status.h"
#include "daemon/ledger/state/run_state.h"
#include "storage/ledger/ledger.h"

namespace ckptd {

// For the first process of its launch. LAUNCH_IDS_DIFFER if another launch that may still act has as many
// ranks, all its processes live on other nodes, and none of them has this rank. Then the two launches are
// probably parts of one job: the one that acts last would fence the other one, and wait for its ranks.
//
// A launch that follows an incomplete one with live processes looks the same, until a process joins it whose rank
// the earlier launch has, too. So callers retry for a while.
absl::Status CheckLaunchIsWhole(const RunState& state, const std::string& node, const Ledger::JoinSpec& spec);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_LEDGER_RUN_SPLIT_LAUNCH_H_
