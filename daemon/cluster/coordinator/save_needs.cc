#include "daemon/cluster/coordinator/save_needs.h"

#include <algorithm>

namespace ckptd {

using ledger::v1::NodeVote;
using ledger::v1::SaveState;

namespace {

bool HasRejection(const SaveView& view) {
  return std::any_of(view.votes.begin(), view.votes.end(),
                     [](const auto& vote) { return vote.second.has_no(); });
}

}  // namespace

bool NeedsAdmission(const SaveState& state, const SaveView& view, const std::string& inflight) {
  if (state.phase() != SaveState::PROPOSED) return false;
  if (HasRejection(view) || state.attempt() < view.active) return true;
  return !inflight.empty() && view.AllHave(NodeVote::VOTED);
}

bool NeedsSettling(const SaveState& state, const SaveView& view) {
  if (state.phase() == SaveState::SEALED) return HasRejection(view);
  if (state.phase() != SaveState::ADMITTED) return false;
  return HasRejection(view) || view.AllHave(NodeVote::SEALED) || state.attempt() < view.active;
}

}  // namespace ckptd
