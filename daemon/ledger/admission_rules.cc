#include "daemon/ledger/admission_rules.h"

#include <map>
#include <set>
#include <utility>

#include "daemon/etcd/etcd_errors.h"
#include "daemon/ledger/change_save.h"
#include "daemon/ledger/fenced.h"
#include "storage/base/reasons.h"

namespace ckptd {
namespace {

using ledger::v1::NodeVote;
using ledger::v1::SaveState;

// The vote that counts for a node; null: it has not voted, or whoever voted has ended since, and its memory
// with it.
const NodeVote* VoteOf(const SaveView& view, const std::string& node) {
  const auto vote = view.votes.find(node);
  const auto living = view.registrations.find(node);
  if (vote == view.votes.end() || living == view.registrations.end()) return nullptr;
  return vote->second.registration() == living->second ? &vote->second : nullptr;
}

ledger::v1::SaveEnd NotDecided() {
  ledger::v1::SaveEnd end;
  end.set_reason(ledger_reason::kUnavailable);
  end.set_message("the coordinator of the run has not decided before the save's deadline");
  return end;
}

// Of the ranks whose nodes have not voted, if that is why `node` has voted no; else of that node's.
ledger::v1::SaveEnd EndByNo(const SaveView& view, const std::string& node, ledger::v1::SaveEnd no) {
  if (no.reason() != reason::kRanksMissing) return EndBy(node, view.ranks.at(node), std::move(no));
  std::map<int, std::string> node_of;  // By rank; of those that have joined.
  std::set<int> voted;
  for (const auto& [other, ranks] : view.ranks) {
    for (const auto& [rank, instance] : ranks.instances()) {
      node_of[rank] = other;
      if (VoteOf(view, other) != nullptr) voted.insert(rank);
    }
  }
  no.clear_ranks();  // It knows of its own ranks only.
  std::set<std::string> nodes;
  for (const int rank : view.all_ranks) {
    if (voted.contains(rank)) continue;
    no.add_ranks(rank);
    nodes.insert(node_of[rank]);
  }
  if (nodes.size() == 1) no.set_node(*nodes.begin());
  if (nodes.empty()) return NotDecided();
  return no;
}

// The no that counts; null: there is none. One that says what is wrong comes before one that only waited.
const std::string* FirstNo(const SaveView& view) {
  const std::string* first = nullptr;
  for (const auto& [node, ranks] : view.ranks) {
    const NodeVote* vote = VoteOf(view, node);
    if (vote == nullptr || !vote->has_no()) continue;
    if (vote->no().reason() != reason::kRanksMissing) return &node;
    if (first == nullptr) first = &node;
  }
  return first;
}

}  // namespace

void DecideAdmission(const SaveView& view, const std::string& inflight, SaveState* state) {
  if (state->phase() != SaveState::PROPOSED) return;
  if (state->attempt() < view.active) return EndWith(FencedEnd(state->attempt(), view.active), state);
  if (const std::string* const node = FirstNo(view))
    return EndWith(EndByNo(view, *node, view.votes.at(*node).no()), state);
  std::set<int> willing;
  for (const auto& [node, ranks] : view.ranks) {
    if (VoteOf(view, node) == nullptr) continue;
    for (const auto& [rank, instance] : ranks.instances()) willing.insert(rank);
  }
  if (inflight.empty()) return;
  if (!view.all_ranks.empty() && willing.size() == view.all_ranks.size()) {
    state->set_phase(SaveState::ADMITTED);
    state->set_inflight(inflight);
  }
}

void NameSave(const ledger::v1::SaveProposal& proposal, SaveState* state) {
  state->set_phase(SaveState::PROPOSED);
  state->set_attempt(proposal.attempt());
  state->set_tag(proposal.tag());
  state->set_ordinal(proposal.ordinal());
  *state->mutable_ranks() = proposal.ranks();
  state->set_admission_ms(proposal.admission_ms());
}

}  // namespace ckptd
