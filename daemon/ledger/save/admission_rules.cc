#include "daemon/ledger/save/admission_rules.h"

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/etcd/etcd_errors.h"
#include "daemon/ledger/save/change_save.h"
#include "daemon/ledger/save/save_end.h"
#include "daemon/ledger/state/fenced.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"
#include "storage/ledger/retention_terms.h"

namespace ckptd {
namespace {

using ledger::v1::NodeVote;
using ledger::v1::SaveState;

// The node's vote, if it counts. Null: the node has not voted, or the daemon that voted has ended since, and
// its memory is freed.
const NodeVote* VoteOf(const SaveView& view, const std::string& node) {
  const auto vote = view.votes.find(node);
  const auto living = view.registrations.find(node);
  if (vote == view.votes.end() || living == view.registrations.end()) return nullptr;
  return vote->second.registration() == living->second ? &vote->second : nullptr;
}

ledger::v1::SaveEnd NotDecided() {
  ledger::v1::SaveEnd end;
  end.set_reason(ledger_reason::kUnavailable);
  end.set_message(
      "all ranks have begun the save and have room for it, and the coordinator of the run has not admitted "
      "it "
      "before its deadline; look at the daemon of the node that coordinates (ckptctl status)");
  return end;
}

// Whether a node has rejected the save only because it waited for other nodes until its deadline.
bool HasOnlyWaited(const ledger::v1::SaveEnd& no) {
  return no.reason() == reason::kRanksMissing && no.ranks().empty();
}

ledger::v1::SaveEnd EndByRejection(const SaveView& view, const SaveState& state, const std::string& node) {
  const ledger::v1::SaveEnd& no = view.votes.at(node).no();
  return HasOnlyWaited(no) ? EndByMissingRanks(view, state.tag()) : EndBy(node, view.ranks.at(node), no);
}

// The node whose rejection counts; null: there is none. A node that names a cause comes before one that only
// waited.
const std::string* FirstRejection(const SaveView& view) {
  const std::string* first = nullptr;
  for (const auto& [node, ranks] : view.ranks) {
    const NodeVote* vote = VoteOf(view, node);
    if (vote == nullptr || !vote->has_no()) continue;
    if (!HasOnlyWaited(vote->no())) return &node;
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

// Gives the state the policy that its nodes name. Ends the save if two nodes name different ones, because
// nothing says which one should count.
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

// Why ranks are missing, in the order of the message: the most certain cause comes first.
enum class Missing { kNotRegistered, kRestarted, kNotBegun, kNotJoined };

Missing WhyMissing(const SaveView& view, const std::string& node) {
  if (node.empty()) return Missing::kNotJoined;
  if (!view.registrations.contains(node)) return Missing::kNotRegistered;
  return view.votes.contains(node) ? Missing::kRestarted : Missing::kNotBegun;
}

const char* WhatToDo(Missing why) {
  switch (why) {
    case Missing::kNotRegistered:
      return "not registered in etcd; look whether the daemon there runs and reaches etcd";
    case Missing::kRestarted:
      return "registered, but its daemon was started again during the save; look whether these ranks have "
             "begun it again";
    case Missing::kNotBegun:
      return "registered; look whether these processes call save, and whether the daemon there has room "
             "(ckptctl status)";
    case Missing::kNotJoined:
      return "they have not joined the run; look at these processes";
  }
  return "";
}

// "node "a" (ranks 0,1), node "b" (ranks 2): registered; look ...".
std::string Describe(Missing why, const std::map<std::string, std::vector<int>>& nodes) {
  constexpr size_t kMostNodes = 8;
  std::vector<std::string> words;
  for (const auto& [node, ranks] : nodes) {
    if (words.size() == kMostNodes) {
      words.push_back(absl::StrCat(nodes.size() - kMostNodes, " more nodes"));
      break;
    }
    words.push_back(node.empty() ? absl::StrCat("no node (ranks ", JoinRanks(ranks), ")")
                                 : NodeAndRanks(node, ranks));
  }
  return absl::StrCat(absl::StrJoin(words, ", "), ": ", WhatToDo(why));
}

}  // namespace

ledger::v1::SaveEnd EndByMissingRanks(const SaveView& view, const std::string& tag) {
  std::map<int, std::string> node_of;  // By rank, for those that have joined.
  std::set<int> voted;
  for (const auto& [node, ranks] : view.ranks) {
    for (const int rank : ranks.ranks()) {
      node_of[rank] = node;
      if (VoteOf(view, node) != nullptr) voted.insert(rank);
    }
  }
  ledger::v1::SaveEnd end;
  std::set<std::string> nodes;
  std::map<Missing, std::map<std::string, std::vector<int>>> missing;
  for (const int rank : view.all_ranks) {
    if (voted.contains(rank)) continue;
    end.add_ranks(rank);
    const std::string& node = node_of[rank];
    nodes.insert(node);
    missing[WhyMissing(view, node)][node].push_back(rank);
  }
  if (missing.empty()) return NotDecided();
  if (nodes.size() == 1) end.set_node(*nodes.begin());
  std::vector<std::string> words;
  for (const auto& [why, of_nodes] : missing) words.push_back(Describe(why, of_nodes));
  end.set_code(static_cast<int>(absl::StatusCode::kDeadlineExceeded));
  end.set_reason(reason::kRanksMissing);
  end.set_message(absl::StrCat("the save of ", tag, " was not begun, or had no room, before its deadline on ",
                               absl::StrJoin(words, "; and on ")));
  return end;
}

void DecideAdmission(const SaveView& view, const std::string& inflight, SaveState* state) {
  if (state->phase() != SaveState::PROPOSED) return;
  if (state->attempt() < view.active) return EndWith(FencedEnd(state->attempt(), view.active), state);
  if (const std::string* const node = FirstRejection(view))
    return EndWith(EndByRejection(view, *state, *node), state);
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
