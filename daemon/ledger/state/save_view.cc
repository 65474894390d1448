#include "daemon/ledger/state/save_view.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "daemon/ledger/state/found_messages.h"
#include "storage/base/errors.h"

namespace ckptd {

using ledger::v1::NodeVote;

namespace {

std::vector<int> AllRanks(const ledger::v1::SaveState& save, int world_size) {
  if (!save.ranks().empty()) return {save.ranks().begin(), save.ranks().end()};
  std::vector<int> all(static_cast<size_t>(std::max(world_size, 0)));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// Leaves out ranks that have nothing to save, and nodes that have no other ranks.
void LeaveOutOthers(const ledger::v1::SaveState& save, std::map<std::string, ledger::v1::NodeRanks>* nodes) {
  if (save.ranks().empty()) return;
  for (auto node = nodes->begin(); node != nodes->end();) {
    auto& ranks = *node->second.mutable_ranks();
    const auto others = std::remove_if(ranks.begin(), ranks.end(), [&save](int rank) {
      return !std::binary_search(save.ranks().begin(), save.ranks().end(), rank);
    });
    ranks.erase(others, ranks.end());
    node = ranks.empty() ? nodes->erase(node) : std::next(node);
  }
}

// Leaves out votes for another save that might have got this sequence.
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
    found.insert(of_node.ranks().begin(), of_node.ranks().end());
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
    const bool has_all = std::all_of(of_node.ranks().begin(), of_node.ranks().end(),
                                     [&have](int rank) { return have.contains(rank); });
    if (!has_all) behind.push_back(node);
  }
  return behind;
}

std::string NodeAndRanks(const std::string& node, const std::vector<int>& ranks) {
  return absl::StrCat("node \"", node, "\" (ranks ", JoinRanks(ranks), ")");
}

ledger::v1::SaveEnd EndBy(const std::string& node, const ledger::v1::NodeRanks& ranks,
                          ledger::v1::SaveEnd why) {
  why.set_node(node);
  // The node may have named some of its ranks.
  if (why.ranks_size() == 0) *why.mutable_ranks() = ranks.ranks();
  // Names the node also where only the message is shown.
  if (!absl::StrContains(why.message(), absl::StrCat("node \"", node, "\""))) {
    why.set_message(
        absl::StrCat(NodeAndRanks(node, {why.ranks().begin(), why.ranks().end()}), ": ", why.message()));
  }
  return why;
}

std::vector<CompareAndSwap::Range> SaveViewRanges(const LedgerKeys& keys, const std::string& nodes,
                                                  int64_t sequence, int64_t attempt) {
  return {{keys.Votes(sequence), true}, {keys.AttemptRanks(attempt), true}, {nodes, true}, {keys.Active()}};
}

SaveView SaveViewOf(const CompareAndSwap::Found& found, const ledger::v1::SaveState& save) {
  SaveView view;
  view.votes = ByLastPart<NodeVote>(found[0]);
  LeaveOutOtherVotes(save, &view.votes);
  view.ranks = ByLastPart<ledger::v1::NodeRanks>(found[1]);
  view.all_ranks = AllRanks(save, view.ranks.empty() ? 0 : view.ranks.begin()->second.world_size());
  LeaveOutOthers(save, &view.ranks);
  for (const etcdserverpb::KeyValue& node : found[2])
    view.registrations[LastPartOf(node.key())] = node.value();
  view.active = FirstOf<ledger::v1::ActiveAttempt>(found[3]).attempt();
  return view;
}

}  // namespace ckptd
