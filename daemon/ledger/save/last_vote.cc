#include "daemon/ledger/save/last_vote.h"

#include <string>
#include <utility>

#include "daemon/etcd/etcd_requests.h"
#include "daemon/ledger/keys/compare_and_swap.h"
#include "daemon/ledger/save/admission_rules.h"
#include "daemon/ledger/state/save_view.h"

namespace ckptd {

using etcdserverpb::RequestOp;
using etcdserverpb::TxnRequest;
using ledger::v1::NodeVote;
using ledger::v1::SaveProposal;
using ledger::v1::SaveState;

std::optional<RequestOp> VoteAndAdmit(const LedgerKeys& keys, const NodeIdentity& node, int64_t sequence,
                                      const etcdserverpb::KeyValue& open, const NodeVote& vote,
                                      const SaveGuess& guess) {
  SaveState state;
  state.ParseFromString(open.value());
  if (!guess.voters || open.mod_revision() == 0 || state.phase() != SaveState::OPEN) return std::nullopt;
  const SaveProposal& proposal = vote.proposal();
  NameSave(proposal, &state);
  SaveView view = SaveViewOf({{}, guess.voters->ranks, guess.voters->nodes, guess.active}, state);
  if (view.ranks.size() > kMostVoters) return std::nullopt;

  RequestOp operation;
  TxnRequest& either = *operation.mutable_request_txn();
  for (const auto& [name, ranks] : view.ranks) {
    NodeVote same = vote;
    const auto living = view.registrations.find(name);
    if (living == view.registrations.end()) return std::nullopt;
    same.set_registration(living->second);
    if (name != node.name)
      *either.add_compare() = HasValue(keys.Vote(sequence, name), same.SerializeAsString());
    view.votes[name] = std::move(same);
  }
  DecideAdmission(view, state.inflight(), &state);
  if (state.phase() != SaveState::ADMITTED) return std::nullopt;

  const std::string index_key = keys.SaveIndex(proposal.attempt(), proposal.tag(), proposal.ordinal());
  // The ranks need no comparison: all of them have joined, and none changes its node.
  *either.add_compare() = UnchangedFrom({node.Siblings(), true}, guess.voters->nodes);
  *either.add_compare() = UnchangedFrom({keys.Active()}, guess.active);
  *either.add_compare() = Absent(index_key);
  // The last sequence was raised when the save was prepared, and not since.
  *either.add_compare() = LastChangedAt(keys.Sequence(), open.mod_revision());

  const RequestOp write = Put(keys.Vote(sequence, node.name), vote.SerializeAsString());
  ledger::v1::SaveIndex index;
  index.set_sequence(sequence);
  *either.add_success() = write;
  *either.add_success() = Put(open.key(), state.SerializeAsString());
  *either.add_success() = Put(index_key, index.SerializeAsString());
  *either.add_failure() = write;
  return operation;
}

}  // namespace ckptd
