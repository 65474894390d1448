#include "daemon/ledger/admission_rules.h"

#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/etcd/etcd_errors.h"
#include "daemon/ledger/change_save.h"
#include "daemon/ledger/fenced.h"
#include "daemon/ledger/save_end.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"
#include "storage/ledger/retention_terms.h"

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
    for (const int rank : ranks.ranks()) {
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

ledger::v1::SaveEnd PoliciesDiffer(const SaveView& view, const std::string& tag, const std::string& first,
                                   const std::string& second) {
  const auto words = [&view](const std::string& node) {
    return absl::StrCat("node \"", node, "\" (", DescribePolicy(view.votes.at(node).retention()), ")");
  };
  return EndOf(MakeError(absl::StatusCode::kAlreadyExists, reason::kSaveConflict,
                         absl::StrCat("the ranks of ", words(first), " and those of ", words(second),
                                      " keep different checkpoints "
                                      "after the save of ",
                                      tag, "; name the same retention policy everywhere"),
                         {{"tag", tag}}));
}

// Gives the state the policy that its nodes name. If two name different ones, which of them counted would be
// chance, so the save ends.
void TakeRetention(const SaveView& view, SaveState* state) {
  const std::string* first = nullptr;
  for (const auto& [node, ranks] : view.ranks) {
    const NodeVote* vote = VoteOf(view, node);
    if (vote == nullptr || !vote->has_retention()) continue;
    if (first != nullptr && !IsSamePolicy(state->retention(), vote->retention()))
      return EndWith(PoliciesDiffer(view, state->tag(), *first, node), state);
    if (first == nullptr) *state->mutable_retention() = vote->retention();
    if (first == nullptr) first = &node;
  }
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
    willing.insert(ranks.ranks().begin(), ranks.ranks().end());
  }
  if (inflight.empty()) return;
  if (!view.all_ranks.empty() && willing.size() == view.all_ranks.size()) {
    state->set_phase(SaveState::ADMITTED);
    state->set_inflight(inflight);
    TakeRetention(view, state);
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
