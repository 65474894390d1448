#include "daemon/ledger/admission_rules.h"

#include <set>
#include <string>

#include "daemon/ledger/change_save.h"
#include "daemon/ledger/fenced.h"

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

}  // namespace

void DecideAdmission(const SaveView& view, SaveState* state) {
  if (state->phase() != SaveState::PROPOSED) return;
  if (state->attempt() < view.active) return EndWith(FencedEnd(state->attempt(), view.active), state);
  std::set<int> willing;
  for (const auto& [node, ranks] : view.ranks) {
    const NodeVote* vote = VoteOf(view, node);
    if (vote == nullptr) continue;
    if (vote->has_no()) return EndWith(EndBy(node, ranks, vote->no()), state);
    for (const auto& [rank, instance] : ranks.instances()) willing.insert(rank);
  }
  if (view.world_size > 0 && static_cast<int>(willing.size()) == view.world_size) {
    state->set_phase(SaveState::ADMITTED);
  }
}

}  // namespace ckptd
