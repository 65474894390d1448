#include "daemon/ledger/save_view.h"

#include <algorithm>

#include "daemon/ledger/found_messages.h"

namespace ckptd {

using ledger::v1::NodeVote;

std::set<int> SaveView::RanksThatHave(NodeVote::Stage stage) const {
  std::set<int> found;
  for (const auto& [node, of_node] : ranks) {
    const auto vote = votes.find(node);
    if (vote == votes.end() || vote->second.has_no() || vote->second.stage() < stage) continue;
    for (const auto& [rank, instance] : of_node.instances()) found.insert(rank);
  }
  return found;
}

bool SaveView::AllHave(NodeVote::Stage stage) const {
  return world_size > 0 && static_cast<int>(RanksThatHave(stage).size()) == world_size;
}

std::vector<std::string> SaveView::Behind(NodeVote::Stage stage) const {
  const std::set<int> have = RanksThatHave(stage);
  std::vector<std::string> behind;
  for (const auto& [node, of_node] : ranks) {
    const bool has_all = std::all_of(of_node.instances().begin(), of_node.instances().end(),
                                     [&have](const auto& rank) { return have.contains(rank.first); });
    if (!has_all) behind.push_back(node);
  }
  return behind;
}

ledger::v1::SaveEnd EndBy(const std::string& node, const ledger::v1::NodeRanks& ranks,
                          ledger::v1::SaveEnd why) {
  why.set_node(node);
  const std::map<int32_t, std::string> sorted(ranks.instances().begin(), ranks.instances().end());
  for (const auto& [rank, instance] : sorted) why.add_ranks(rank);
  return why;
}

std::vector<CompareAndSwap::Range> SaveViewRanges(const LedgerKeys& keys, const std::string& nodes,
                                                  int64_t sequence, int64_t attempt) {
  return {{keys.Votes(sequence), true},
          {keys.AttemptRanks(attempt), true},
          {keys.Head(attempt)},
          {nodes, true},
          {keys.Active()}};
}

SaveView SaveViewOf(const CompareAndSwap::Found& found) {
  SaveView view;
  view.votes = ByLastPart<NodeVote>(found[0]);
  view.ranks = ByLastPart<ledger::v1::NodeRanks>(found[1]);
  view.world_size = FirstOf<ledger::v1::AttemptHead>(found[2]).world_size();
  for (const etcdserverpb::KeyValue& node : found[3])
    view.registrations[LastPartOf(node.key())] = node.value();
  view.active = FirstOf<ledger::v1::ActiveAttempt>(found[4]).attempt();
  return view;
}

}  // namespace ckptd
