#include "daemon/ledger/save_view.h"

#include <algorithm>
#include <numeric>

#include "daemon/ledger/found_messages.h"

namespace ckptd {

using ledger::v1::NodeVote;

namespace {

std::vector<int> AllRanks(const ledger::v1::SaveState& save, int world_size) {
  if (!save.ranks().empty()) return {save.ranks().begin(), save.ranks().end()};
  std::vector<int> all(static_cast<size_t>(std::max(world_size, 0)));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// A node of which no rank has anything to save has nothing to say of the save.
void LeaveOutOthers(const ledger::v1::SaveState& save, std::map<std::string, ledger::v1::NodeRanks>* nodes) {
  if (save.ranks().empty()) return;
  for (auto node = nodes->begin(); node != nodes->end();) {
    ledger::v1::NodeRanks taking_part;
    for (const auto& [rank, instance] : node->second.instances()) {
      if (std::binary_search(save.ranks().begin(), save.ranks().end(), rank))
        (*taking_part.mutable_instances())[rank] = instance;
    }
    node->second = std::move(taking_part);
    node = node->second.instances().empty() ? nodes->erase(node) : std::next(node);
  }
}

// Votes for another save, which would have had this sequence.
void LeaveOutOtherVotes(const ledger::v1::SaveState& save, std::map<std::string, NodeVote>* votes) {
  std::erase_if(*votes, [&save](const auto& vote) {
    return vote.second.has_proposal() && !IsOf(vote.second.proposal(), save);
  });
}

}  // namespace

bool IsOf(const ledger::v1::SaveProposal& proposal, const ledger::v1::SaveState& save) {
  return proposal.attempt() == save.attempt() && proposal.tag() == save.tag() &&
         proposal.ordinal() == save.ordinal() &&
         std::equal(proposal.ranks().begin(), proposal.ranks().end(), save.ranks().begin(),
                    save.ranks().end());
}

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
  return !all_ranks.empty() && RanksThatHave(stage).size() == all_ranks.size();
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
  if (why.ranks_size() > 0) return why;  // The node has said which of them.
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

SaveView SaveViewOf(const CompareAndSwap::Found& found, const ledger::v1::SaveState& save) {
  SaveView view;
  view.votes = ByLastPart<NodeVote>(found[0]);
  LeaveOutOtherVotes(save, &view.votes);
  view.ranks = ByLastPart<ledger::v1::NodeRanks>(found[1]);
  LeaveOutOthers(save, &view.ranks);
  view.all_ranks = AllRanks(save, FirstOf<ledger::v1::AttemptHead>(found[2]).world_size());
  for (const etcdserverpb::KeyValue& node : found[3])
    view.registrations[LastPartOf(node.key())] = node.value();
  view.active = FirstOf<ledger::v1::ActiveAttempt>(found[4]).attempt();
  return view;
}

}  // namespace ckptd
