// The nodes of a save with their ranks, votes and reports, as read from etcd at one moment.
#ifndef CKPTD_DAEMON_LEDGER_STATE_SAVE_VIEW_H_
#define CKPTD_DAEMON_LEDGER_STATE_SAVE_VIEW_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "ckptd/ledger/v1/ledger.pb.h"
#include "daemon/ledger/keys/compare_and_swap.h"
#include "daemon/ledger/keys/keys.h"

namespace ckptd {

// The maps are keyed by node.
struct SaveView {
  std::map<std::string, ledger::v1::NodeVote> votes;   // With the nodes' later reports.
  std::map<std::string, ledger::v1::NodeRanks> ranks;  // Only ranks that have something to save.
  std::map<std::string, std::string> registrations;    // Of all registered nodes.
  std::vector<int> all_ranks;  // All that have something to save, joined or not. Empty: unknown.
  int64_t active = 0;          // The attempt that acts.

  // Whether the nodes of `all_ranks` have reported `stage`.
  bool AllHave(ledger::v1::NodeVote::Stage stage) const;
  // The nodes that have not.
  std::vector<std::string> Behind(ledger::v1::NodeVote::Stage stage) const;

 private:
  std::set<int> RanksThatHave(ledger::v1::NodeVote::Stage stage) const;
};

// Whether `save`, which has a name, is the proposed one, with the same ranks.
bool IsOf(const ledger::v1::SaveProposal& proposal, const ledger::v1::SaveState& save);

// For messages: node "gpu17" (ranks 8,9).
std::string NodeAndRanks(const std::string& node, const std::vector<int>& ranks);
// The end of a save that one node has caused. It names the ranks of `why`, or else all ranks of the node. The
// message begins with the node and these ranks.
ledger::v1::SaveEnd EndBy(const std::string& node, const ledger::v1::NodeRanks& ranks,
                          ledger::v1::SaveEnd why);

// The ranges to read for a SaveView. `nodes`: the prefix of the nodes' keys.
std::vector<CompareAndSwap::Range> SaveViewRanges(const LedgerKeys& keys, const std::string& nodes,
                                                  int64_t sequence, int64_t attempt);
// Makes the view from these ranges, which are the first of `found`.
SaveView SaveViewOf(const CompareAndSwap::Found& found, const ledger::v1::SaveState& save);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_LEDGER_STATE_SAVE_VIEW_H_
