#include "daemon/cluster/coordinator/save_needs.h"

#include "gtest/gtest.h"

namespace ckptd {
namespace {

using ledger::v1::NodeVote;
using ledger::v1::SaveState;

SaveState StateOf(SaveState::Phase phase) {
  SaveState state;
  state.set_phase(phase);
  state.set_attempt(1);
  return state;
}

// One node, which has all ranks of the save and has reported `stage`.
SaveView ViewOf(NodeVote::Stage stage) {
  SaveView view;
  view.active = 1;
  view.all_ranks = {0, 1};
  view.registrations.emplace("a", "id");
  view.ranks["a"].add_ranks(0);
  view.ranks["a"].add_ranks(1);
  view.votes["a"].set_stage(stage);
  return view;
}

TEST(SaveNeeds, SaveIsAdmittedWhenAllHaveVotedAndItsDirectoryIsThere) {
  const SaveState proposed = StateOf(SaveState::PROPOSED);
  EXPECT_TRUE(NeedsAdmission(proposed, ViewOf(NodeVote::VOTED), "inflight/1"));
  EXPECT_FALSE(NeedsAdmission(proposed, ViewOf(NodeVote::VOTED), "")) << "no directory yet";
  SaveView nobody = ViewOf(NodeVote::VOTED);
  nobody.votes.clear();
  EXPECT_FALSE(NeedsAdmission(proposed, nobody, "inflight/1")) << "nobody has voted";
  EXPECT_FALSE(NeedsAdmission(StateOf(SaveState::ADMITTED), ViewOf(NodeVote::VOTED), "inflight/1"));
}

TEST(SaveNeeds, SaveOfAnAttemptThatIsOverIsEndedInEachPhase) {
  SaveView later;
  later.active = 2;
  EXPECT_TRUE(NeedsAdmission(StateOf(SaveState::PROPOSED), later, ""));
  EXPECT_TRUE(NeedsSettling(StateOf(SaveState::ADMITTED), later));
  EXPECT_FALSE(NeedsSettling(StateOf(SaveState::SEALED), later)) << "it is published";
}

TEST(SaveNeeds, SaveThatANodeRefusesIsEndedInEachPhase) {
  SaveView refused;
  refused.active = 1;
  refused.votes["a"].mutable_no();
  EXPECT_TRUE(NeedsAdmission(StateOf(SaveState::PROPOSED), refused, ""));
  EXPECT_TRUE(NeedsSettling(StateOf(SaveState::ADMITTED), refused));
  EXPECT_TRUE(NeedsSettling(StateOf(SaveState::SEALED), refused));
}

TEST(SaveNeeds, SaveIsSealedWhenAllHaveSealed) {
  EXPECT_TRUE(NeedsSettling(StateOf(SaveState::ADMITTED), ViewOf(NodeVote::SEALED)));
  EXPECT_FALSE(NeedsSettling(StateOf(SaveState::ADMITTED), ViewOf(NodeVote::VOTED)));
}

}  // namespace
}  // namespace ckptd
