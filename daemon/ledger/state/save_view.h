// The attempt of a save, and how far the save's nodes are, as read from etcd at one moment.
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

// By node.
struct SaveView {
  std::map<std::string, ledger::v1::NodeVote> votes;   // And what the nodes have reported since.
  std::map<std::string, ledger::v1::NodeRanks> ranks;  // Of those that have something to save.
  std::map<std::string, std::string> registrations;    // Of the nodes that live.
  std::vector<int>
      all_ranks;       // That have something to save, also those that have not joined. Empty: unknown.
  int64_t active = 0;  // The attempt that acts.

  // Whether the nodes of all these ranks have reported `stage`.
  bool AllHave(ledger::v1::NodeVote::Stage stage) const;
  // Nodes of the other ranks.
  std::vector<std::string> Behind(ledger::v1::NodeVote::Stage stage) const;

 private:
  std::set<int> RanksThatHave(ledger::v1::NodeVote::Stage stage) const;
};

// Whether the save, which has a name, is this one, of the same ranks.
bool IsOf(const ledger::v1::SaveProposal& proposal, const ledger::v1::SaveState& save);

// For messages: node "gpu17" (ranks 8,9).
std::string NodeAndRanks(const std::string& node, const std::vector<int>& ranks);
// The end of a save because of one node: of the ranks that `why` names, or else of all that it has. The
// message begins with the node and these ranks.
ledger::v1::SaveEnd EndBy(const std::string& node, const ledger::v1::NodeRanks& ranks,
                          ledger::v1::SaveEnd why);

// What to read for it. `nodes`: the prefix of the nodes' keys.
std::vector<CompareAndSwap::Range> SaveViewRanges(const LedgerKeys& keys, const std::string& nodes,
                                                  int64_t sequence, int64_t attempt);
// Of what was found in those ranges, which are the first of `found`.
SaveView SaveViewOf(const CompareAndSwap::Found& found, const ledger::v1::SaveState& save);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_LEDGER_STATE_SAVE_VIEW_H_
