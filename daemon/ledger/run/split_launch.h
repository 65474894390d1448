// Finds out that the nodes of one launch say different launch ids.
#ifndef CKPTD_DAEMON_LEDGER_RUN_SPLIT_LAUNCH_H_
#define CKPTD_DAEMON_LEDGER_RUN_SPLIT_LAUNCH_H_

#include <string>

#include "absl/status/status.h"
#include "daemon/ledger/state/run_state.h"
#include "storage/ledger/ledger.h"

namespace ckptd {

// For a process that is about to begin a launch that no rank has joined: LAUNCH_IDS_DIFFER if a launch that
// may still act, of as many ranks, lives only on other nodes, and none of its processes has this rank. Then
// each of the two launches would be a part of one job: the launch that acts last would fence the other one,
// and would wait for its ranks.
//
// A launch that follows another one looks the same if it begins while the other one lacks ranks, and all
// processes that have joined that one still live. It no longer looks the same when a process has begun it
// whose rank is in the other launch, too. So callers ask again for a while.
absl::Status CheckLaunchIsWhole(const RunState& state, const std::string& node, const Ledger::JoinSpec& spec);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_LEDGER_RUN_SPLIT_LAUNCH_H_
