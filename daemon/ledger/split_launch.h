// Finds out that the nodes of one launch say different launch ids.
#ifndef CKPTD_DAEMON_LEDGER_SPLIT_LAUNCH_H_
#define CKPTD_DAEMON_LEDGER_SPLIT_LAUNCH_H_

#include <string>

#include "absl/status/status.h"
#include "daemon/ledger/run_state.h"
#include "storage/ledger/ledger.h"

namespace ckptd {

// For a process that is about to begin a launch that no rank has joined: LAUNCH_IDS_DIFFER if a launch that
// may still act, of as many ranks, lives on other nodes alone, and none of its processes has this rank. Each
// of the two would be a part of a job: the one that acts last fences the other, and waits for its ranks.
//
// A launch that follows another one looks the same if it comes while that one has not all its ranks, and all
// that have joined still live. It does not any more when another process has begun it: a process with a rank
// that the other launch has. So ask again for a while.
absl::Status CheckLaunchIsWhole(const RunState& state, const std::string& node, const Ledger::JoinSpec& spec);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_LEDGER_SPLIT_LAUNCH_H_
