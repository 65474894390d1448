// How two nodes admit a save of both, and report how far they are: run against the simulated etcd and its
// faults, a model over gRPC, and Debian's etcd.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/etcd/etcd_requests.h"
#include "daemon/ledger/keys/keys.h"
#include "daemon/ledger/keys/ledger_reasons.h"
#include "tests/contract/spanning_saves.h"

namespace ckptd {
namespace {

using SaveAdmissionContract = SpanningSaves;
using ::testing::HasSubstr;
INSTANTIATE_TEST_SUITE_P(, SaveAdmissionContract, ::testing::ValuesIn(AllEtcds(/*seeds=*/20)), NameOf);

TEST_P(SaveAdmissionContract, FirstBeginOnAnyNodeProposesTheSaveThatTheOthersFind) {
  const Save save = Begin(first_, "step_1");
  EXPECT_EQ(save.sequence, 1);
  EXPECT_EQ(Text(save), "PROPOSED");
  EXPECT_EQ(Begin(second_, "step_1").sequence, 1);
  EXPECT_EQ(Begin(first_, "step_1").sequence, 1);
  EXPECT_EQ(Begin(second_, "step_1", 2).sequence, 2) << "the tag once more";
  EXPECT_EQ(Begin(second_, "step_1/a").sequence, 3);
}

TEST_P(SaveAdmissionContract, NodesThatBeginTogetherFindOneSave) {
  std::vector<int64_t> sequences;
  for (Daemon* daemon : {&first_, &second_}) {
    daemon->saves->Begin({1, "step_1", 1}, [&](const absl::StatusOr<Save>& save) {
      sequences.push_back(save.ok() ? save->sequence : -1);
    });
  }
  etcd_.caller().RunUntil([&] { return sequences.size() == 2; });
  EXPECT_EQ(sequences, (std::vector<int64_t>{1, 1}));
}

TEST_P(SaveAdmissionContract, SaveOfSomeRanksIsBetweenTheirNodes) {
  ASSERT_EQ(Join(second_, 1), 1);
  const Save save = Begin(first_, "step_1", 1, {0});
  EXPECT_EQ(Decide(save), "PROPOSED") << "node1 has not voted";
  EXPECT_EQ(Vote(second_, save, "NO_MEMORY"), "PROPOSED");
  EXPECT_EQ(Vote(first_, save), "PROPOSED");
  EXPECT_EQ(Decide(save), "ADMITTED") << "no rank of node2 has anything to save";
}

TEST_P(SaveAdmissionContract, IsAdmittedWhenTheNodesOfAllRanksHaveVotedYes) {
  const Save save = Begin(first_, "step_1");
  EXPECT_EQ(Vote(first_, save), "PROPOSED");
  EXPECT_EQ(Decide(save), "PROPOSED") << "rank 1 has not joined";
  ASSERT_EQ(Join(second_, 1), 1);
  EXPECT_EQ(Decide(save), "PROPOSED") << "node2 has not voted";
  EXPECT_EQ(Vote(second_, save), "PROPOSED");
  EXPECT_EQ(Decide(save), "ADMITTED");
  EXPECT_EQ(Text(Begin(second_, "step_1")), "ADMITTED");
  EXPECT_EQ(Decide(save), "ADMITTED");
}

TEST_P(SaveAdmissionContract, OneNoEndsItAndSaysWhose) {
  ASSERT_EQ(Join(second_, 1), 1);
  const Save save = Begin(first_, "step_1");
  EXPECT_EQ(Vote(second_, save, "NO_MEMORY"), "PROPOSED");
  EXPECT_EQ(Decide(save), "ENDED NO_MEMORY of node2, ranks 1");
  EXPECT_EQ(Vote(first_, save), "ENDED NO_MEMORY of node2, ranks 1");
  EXPECT_EQ(Decide(save), "ENDED NO_MEMORY of node2, ranks 1");
  EXPECT_EQ(Text(Begin(second_, "step_1")), "ENDED NO_MEMORY of node2, ranks 1");
}

TEST_P(SaveAdmissionContract, NoOfANodeNamesAllItsRanksAlsoIfTheyHaveJoinedOneByOne) {
  for (const int rank : {0, 20, 40}) ASSERT_EQ(Join(second_, rank, "wide", 48), 2);
  Activate(2);
  const auto save = Await<absl::StatusOr<Save>>([&](auto answer) {
    second_.saves->Begin({2, "step_1", 1, {0, 20, 40}, std::chrono::minutes(1)}, std::move(answer));
  });
  ASSERT_TRUE(save.ok()) << save.status();
  Vote(second_, *save, "NO_MEMORY");
  EXPECT_EQ(Decide(*save), "ENDED NO_MEMORY of node2, ranks 0 20 40");
}

// As one that was asked before, and whose answer has not come: the node may use the memory for something
// else.
TEST_P(SaveAdmissionContract, YesThatIsMadeAgainAfterANoChangesNothing) {
  ASSERT_EQ(Join(second_, 1), 1);
  const Save save = Begin(first_, "step_1");
  Vote(second_, save, "NO_MEMORY");
  EXPECT_EQ(Vote(second_, save), "PROPOSED");
  EXPECT_EQ(Vote(first_, save), "PROPOSED");
  EXPECT_EQ(Decide(save), "ENDED NO_MEMORY of node2, ranks 1");
}

TEST_P(SaveAdmissionContract, IsAdmittedWithTheDirectoryThatWasMadeForItFirst) {
  ASSERT_EQ(Join(second_, 1), 1);
  const Save save = Begin(first_, "step_1");
  Vote(first_, save);
  Vote(second_, save);
  EXPECT_EQ(Decide(save, ""), "PROPOSED");
  EXPECT_EQ(Decide(save, "one"), "ADMITTED");
  EXPECT_EQ(Decide(save, "two"), "ADMITTED");
  EXPECT_EQ(Begin(second_, "step_1").state.inflight(), "one");
}

TEST_P(SaveAdmissionContract, HasTheRetentionPolicyThatItsNodesName) {
  ASSERT_EQ(Join(second_, 1), 1);
  const Save save = Begin(first_, "step_1"), other = Begin(first_, "step_2"), none = Begin(first_, "step_3");
  VoteKeeping(first_, save, 3);
  EXPECT_FALSE(Begin(first_, "step_1").state.has_retention()) << "not all have voted";
  Vote(second_, save);
  EXPECT_EQ(Decide(save), "ADMITTED");
  EXPECT_EQ(Begin(second_, "step_1").state.retention().last(), 3);
  VoteKeeping(first_, other, 0);
  VoteKeeping(second_, other, 0);
  EXPECT_EQ(Decide(other), "ADMITTED");
  EXPECT_TRUE(Begin(second_, "step_2").state.has_retention()) << "keeping all was named";
  Vote(first_, none);
  Vote(second_, none);
  EXPECT_EQ(Decide(none), "ADMITTED");
  EXPECT_FALSE(Begin(second_, "step_3").state.has_retention());
}

TEST_P(SaveAdmissionContract, EndsIfTwoNodesNameDifferentRetentionPolicies) {
  ASSERT_EQ(Join(second_, 1), 1);
  const Save save = Begin(first_, "step_1");
  VoteKeeping(first_, save, 3);
  VoteKeeping(second_, save, 2);
  EXPECT_EQ(Decide(save), "ENDED SAVE_CONFLICT");
  EXPECT_THAT(Begin(second_, "step_1").state.end().message(),
              ::testing::AllOf(HasSubstr("\"node1\" (last 3)"), HasSubstr("\"node2\" (last 2)")));
}

// Its successor may name another one, and its vote counts.
TEST_P(SaveAdmissionContract, PolicyOfADaemonThatHasEndedDoesNotCount) {
  ASSERT_EQ(Join(second_, 1), 1);
  const Save save = Begin(first_, "step_1");
  VoteKeeping(first_, save, 3);
  VoteKeeping(second_, save, 2);
  Restart(second_);
  VoteKeeping(second_, save, 3);
  EXPECT_EQ(Decide(save), "ADMITTED");
}

TEST_P(SaveAdmissionContract, NodeThatHasWaitedInVainBlamesTheRanksThatAreMissing) {
  const Save early = Begin(first_, "step_1");
  EXPECT_EQ(Vote(first_, early, "RANKS_MISSING"), "PROPOSED");
  EXPECT_EQ(Decide(early), "ENDED RANKS_MISSING 1") << "it has not joined";
  EXPECT_THAT(Begin(first_, "step_1").state.end().message(),
              HasSubstr("no node (ranks 1): they have not joined"));
  ASSERT_EQ(Join(second_, 1), 1);
  const Save save = Begin(first_, "step_2");
  EXPECT_EQ(Vote(first_, save, "RANKS_MISSING"), "PROPOSED");
  EXPECT_EQ(Decide(save, ""), "ENDED RANKS_MISSING of node2, ranks 1");
  EXPECT_THAT(Begin(first_, "step_2").state.end().message(),
              HasSubstr("node \"node2\" (ranks 1): registered"));
}

// Its engine knows which; the ranks of other nodes have nothing to do with it.
TEST_P(SaveAdmissionContract, NodeWhoseOwnRanksHaveNotBegunBlamesThem) {
  ASSERT_EQ(Join(second_, 1), 1);
  const Save save = Begin(first_, "step_1");
  ledger::v1::NodeVote waited, own;
  waited.mutable_no()->set_reason("RANKS_MISSING");
  own.mutable_no()->set_reason("RANKS_MISSING");
  own.mutable_no()->set_message("ranks 1 have not begun");
  own.mutable_no()->add_ranks(1);
  TextOfVoted([&](auto answer) { first_.saves->Vote(save, waited, std::nullopt, std::move(answer)); });
  TextOfVoted([&](auto answer) { second_.saves->Vote(save, own, std::nullopt, std::move(answer)); });
  EXPECT_EQ(Decide(save), "ENDED RANKS_MISSING of node2, ranks 1");
  EXPECT_EQ(Begin(first_, "step_1").state.end().message(),
            "node \"node2\" (ranks 1): ranks 1 have not begun");
}

TEST_P(SaveAdmissionContract, NodeThatSaysWhatIsWrongIsHeardBeforeOneThatHasWaited) {
  ASSERT_EQ(Join(second_, 1), 1);
  const Save save = Begin(first_, "step_1"), undecided = Begin(first_, "step_2");
  Vote(first_, save, "RANKS_MISSING");
  Vote(second_, save, "NO_MEMORY");
  EXPECT_EQ(Decide(save), "ENDED NO_MEMORY of node2, ranks 1");
  Vote(first_, undecided, "RANKS_MISSING");
  Vote(second_, undecided);
  EXPECT_EQ(Decide(undecided), "ENDED LEDGER_UNAVAILABLE") << "no rank is missing";
}

// TearDown delivers the late copy of the yes.
TEST_P(SaveAdmissionContract, VoteThatWasTakenBackDoesNotCountAndOneThatHasCountedIsNotTakenBack) {
  ASSERT_EQ(Join(second_, 1), 1);
  const Save back = Begin(first_, "step_1"), save = Begin(first_, "step_2");
  for (const Save& each : {back, save}) {
    Vote(first_, each);
    Vote(second_, each);
  }
  EXPECT_EQ(Vote(second_, back, "WITHDRAWN"), "PROPOSED") << "its memory is free";
  EXPECT_EQ(Decide(back), "ENDED WITHDRAWN of node2, ranks 1");
  EXPECT_EQ(Decide(save), "ADMITTED");
  const std::string vote = LedgerKeys(nodes_.prefix() + "run/").Vote(save.sequence, "node2");
  const std::string yes = nodes_.Read(vote);
  EXPECT_EQ(Vote(second_, save, "WITHDRAWN"), "ADMITTED") << "its memory is needed";
  EXPECT_EQ(nodes_.Read(vote), yes);
  EXPECT_EQ(Decide(save), "ADMITTED");
}

TEST_P(SaveAdmissionContract, VoteOfADaemonThatHasEndedDoesNotCount) {
  ASSERT_EQ(Join(second_, 1), 1);
  const Save save = Begin(first_, "step_1");
  Vote(first_, save);
  Vote(second_, save);
  Restart(second_);
  EXPECT_EQ(Decide(save), "PROPOSED");
  Vote(second_, save);
  EXPECT_EQ(Decide(save), "ADMITTED");
}

TEST_P(SaveAdmissionContract, FencedAttemptBeginsNothingAndItsProposedSaveEnds) {
  ASSERT_EQ(Join(second_, 1), 1);
  Activate(1);
  const Save save = Begin(first_, "step_1");
  Vote(first_, save);
  Vote(second_, save);
  ASSERT_EQ(Join(second_, 1, "launch 2"), 2);
  Activate(2);
  EXPECT_EQ(Text(TryBegin(first_, "step_2")), "FENCED");
  EXPECT_EQ(Text(Begin(first_, "step_1")), "PROPOSED") << "it was begun before";
  EXPECT_EQ(Decide(save), "ENDED FENCED");
}

TEST_P(SaveAdmissionContract, DaemonThatIsReplacedBeginsNothingAndDoesNotVote) {
  const Save save = Begin(first_, "step_1");
  const auto successor = nodes_.Start("node2");
  EXPECT_EQ(Text(TryBegin(second_, "step_2")), ledger_reason::kNodeReplaced);
  EXPECT_EQ(Vote(second_, save), ledger_reason::kNodeReplaced);
  EXPECT_EQ(Begin(first_, "step_3").sequence, 2);
}

TEST_P(SaveAdmissionContract, SaveEndsOnce) {
  ASSERT_EQ(Join(second_, 1), 1);
  const Save save = Begin(first_, "step_1");
  Vote(first_, save);
  Vote(second_, save);
  EXPECT_EQ(End(save, "CANCELLED"), "ENDED CANCELLED");
  EXPECT_EQ(End(save, "TIMEOUT"), "ENDED CANCELLED");
  EXPECT_EQ(Decide(save), "ENDED CANCELLED") << "all have voted yes";
}

TEST_P(SaveAdmissionContract, OnlyTheCoordinatorDecides) {
  ASSERT_EQ(Join(second_, 1), 1);
  const Save save = Begin(first_, "step_1");
  Vote(first_, save);
  Vote(second_, save);
  std::optional<absl::Status> resigned;
  coordinator_->Resign([&](absl::Status answer) { resigned = std::move(answer); });
  etcd_.caller().RunUntil([&] { return resigned.has_value(); });
  EXPECT_EQ(Decide(save), ledger_reason::kNotCoordinator);
  EXPECT_EQ(End(save, "TIMEOUT"), ledger_reason::kNotCoordinator);
  EXPECT_EQ(Text(Begin(second_, "step_1")), "PROPOSED");
}

// ---- how far the nodes are

TEST_P(SaveAdmissionContract, NodeReportsItsPartsInOrderAndTheFirstReportCounts) {
  ASSERT_EQ(Join(second_, 1), 1);
  const Save save = Admitted("step_1");
  EXPECT_EQ(Durable(second_, save, "digest"), ledger_reason::kNotInSave) << "it is not sealed";
  EXPECT_EQ(Sealed(second_, save), "ADMITTED");
  EXPECT_EQ(Stage(save), "SEALED");
  EXPECT_EQ(Durable(second_, save, "digest"), "ADMITTED");
  EXPECT_EQ(Durable(second_, save, "other"), "ADMITTED");
  EXPECT_EQ(Sealed(second_, save), "ADMITTED");
  EXPECT_EQ(Stage(save), "DURABLE digest");
}

TEST_P(SaveAdmissionContract, NothingIsReportedOfASaveThatIsNotAdmittedOrThatTheNodeTakesNoPartIn) {
  ASSERT_EQ(Join(second_, 1), 1);
  const Save save = Begin(first_, "step_1");
  Vote(second_, save);
  EXPECT_EQ(Sealed(second_, save), "PROPOSED");
  EXPECT_EQ(Stage(save), "VOTED");
  Daemon third = Start("node3"), fourth = Start("node4");
  EXPECT_EQ(Vote(third, save, "NO_MEMORY"), "PROPOSED") << "it has no ranks";
  Vote(first_, save);
  EXPECT_EQ(Decide(save), "ADMITTED");
  EXPECT_EQ(Sealed(third, save), ledger_reason::kNotInSave);
  EXPECT_EQ(Sealed(fourth, save), ledger_reason::kNotInSave);
  EXPECT_EQ(End(save, "CANCELLED"), "ENDED CANCELLED");
  EXPECT_EQ(Sealed(second_, save), "ENDED CANCELLED");
  EXPECT_EQ(Stage(save), "VOTED");
}

TEST_P(SaveAdmissionContract, FencedAttemptSealsNothingMoreAndWhatItHasSealedBecomesDurable) {
  ASSERT_EQ(Join(second_, 1), 1);
  Activate(1);
  const Save sealed = Admitted("step_1"), written = Admitted("step_2");
  EXPECT_EQ(Sealed(second_, sealed), "ADMITTED");
  ASSERT_EQ(Join(first_, 0, "launch 2"), 2);
  Activate(2);
  EXPECT_EQ(Sealed(second_, written), "FENCED");
  EXPECT_EQ(Stage(written), "VOTED");
  EXPECT_EQ(Durable(second_, sealed, "digest"), "ADMITTED");
  EXPECT_EQ(Stage(sealed), "DURABLE digest");
}

TEST_P(SaveAdmissionContract, SuccessorGoesOnWithWhatWasSealedAndNotWithWhatWasOnlyVotedFor) {
  ASSERT_EQ(Join(second_, 1), 1);
  const Save sealed = Admitted("step_1"), written = Admitted("step_2");
  EXPECT_EQ(Sealed(second_, sealed), "ADMITTED");
  Daemon replaced = std::move(second_);
  second_ = Start("node2");
  EXPECT_EQ(Sealed(replaced, written), ledger_reason::kNodeReplaced);
  EXPECT_EQ(Durable(replaced, sealed, "of the old one"), ledger_reason::kNodeReplaced);
  EXPECT_EQ(Sealed(second_, written), ledger_reason::kNotInSave);
  EXPECT_EQ(Sealed(second_, sealed), "ADMITTED");
  EXPECT_EQ(Durable(second_, sealed, "digest"), "ADMITTED");
  EXPECT_EQ(Stage(sealed), "DURABLE digest");
}

// ---- saves that are made in advance

class PreparedSave : public SpanningSaves {
 protected:
  void SetUp() override {
    SpanningSaves::SetUp();
    ASSERT_EQ(Join(second_, 1), 1);
  }
  absl::StatusOr<Save> Open(int64_t sequence, const std::string& inflight = "directory") {
    return Await<absl::StatusOr<Save>>(
        [&](auto answer) { first_.saves->Open(sequence, leadership_, inflight, std::move(answer)); });
  }
  static ledger::v1::SaveProposal Proposal(const std::string& tag, std::vector<int> ranks = {}) {
    ledger::v1::SaveProposal proposal;
    proposal.set_attempt(1);
    proposal.set_tag(tag);
    proposal.set_ordinal(1);
    proposal.mutable_ranks()->Add(ranks.begin(), ranks.end());
    return proposal;
  }
  std::string VoteFor(Daemon& daemon, const Save& save, const ledger::v1::SaveProposal& proposal,
                      const std::string& no = "", const std::optional<SaveGuess>& guess = std::nullopt,
                      int keeps = 0) {
    ledger::v1::NodeVote vote;
    *vote.mutable_proposal() = proposal;
    if (keeps > 0) vote.mutable_retention()->set_last(keeps);
    if (!no.empty()) vote.mutable_no()->set_reason(no);
    return TextOfVoted([&](auto answer) { daemon.saves->Vote(save, vote, guess, std::move(answer)); });
  }
  absl::StatusOr<Save> DecideOpen(const Save& save, const ledger::v1::SaveProposal& proposal,
                                  bool may_wait = true,
                                  std::optional<CompareAndSwap::Found> guess = std::nullopt) {
    return Await<absl::StatusOr<Save>>([&](auto answer) {
      first_.saves->DecideOpen(save, leadership_, proposal, may_wait, std::move(guess), std::move(answer));
    });
  }
  std::string Close(const Save& save) {
    return Text(Await<absl::StatusOr<Save>>(
        [&](auto answer) { first_.saves->Close(save, leadership_, std::move(answer)); }));
  }
};
INSTANTIATE_TEST_SUITE_P(, PreparedSave, ::testing::ValuesIn(AllEtcds(/*seeds=*/20)), NameOf);

TEST_P(PreparedSave, BecomesTheSaveThatAllNodesVoteFor) {
  const Save save = *Open(1);
  EXPECT_EQ(Text(save), "OPEN");
  EXPECT_EQ(Text(*Open(1, "another")), "OPEN");
  EXPECT_EQ(VoteFor(first_, save, Proposal("step_1")), "OPEN");
  EXPECT_EQ(Text(DecideOpen(save, Proposal("step_1"))), "OPEN") << "node2 has not voted";
  EXPECT_EQ(VoteFor(second_, save, Proposal("step_1")), "OPEN");
  const auto admitted = DecideOpen(save, Proposal("step_1"));
  EXPECT_EQ(Text(admitted), "ADMITTED");
  EXPECT_EQ(admitted->state.inflight(), "directory");
  EXPECT_EQ(Begin(second_, "step_1").sequence, 1) << "whoever asks finds it";
  EXPECT_EQ(Begin(second_, "step_2").sequence, 2);
}

TEST_P(PreparedSave, HasTheRetentionPolicyThatItsNodesName) {
  const Save save = *Open(1);
  VoteFor(first_, save, Proposal("step_1"));
  VoteFor(second_, save, Proposal("step_1"), "", std::nullopt, 3);
  const auto admitted = DecideOpen(save, Proposal("step_1"));
  EXPECT_EQ(Text(admitted), "ADMITTED");
  EXPECT_EQ(admitted->state.retention().last(), 3);
  const Save next = *Open(2);
  VoteFor(first_, next, Proposal("step_2"), "", std::nullopt, 2);
  VoteFor(second_, next, Proposal("step_2"), "", std::nullopt, 3);
  EXPECT_EQ(Text(DecideOpen(next, Proposal("step_2"))), "ENDED SAVE_CONFLICT");
}

TEST_P(PreparedSave, IsProposedIfThereIsNoTimeToWaitForTheOthers) {
  const Save save = *Open(1);
  VoteFor(first_, save, Proposal("step_1"));
  const Save named = *DecideOpen(save, Proposal("step_1"), /*may_wait=*/false);
  EXPECT_EQ(Text(named), "PROPOSED");
  EXPECT_EQ(Text(Begin(second_, "step_1")), "PROPOSED");
  EXPECT_EQ(Vote(second_, named), "PROPOSED");
  EXPECT_EQ(Decide(named), "ADMITTED") << "the vote of node1 counts";
}

TEST_P(PreparedSave, VoteForAnotherSaveDoesNotCount) {
  const Save save = *Open(1);
  VoteFor(first_, save, Proposal("step_1"));
  VoteFor(second_, save, Proposal("step_2"));
  EXPECT_EQ(Text(DecideOpen(save, Proposal("step_1"))), "OPEN");
  const Save named = *DecideOpen(save, Proposal("step_1"), /*may_wait=*/false);
  EXPECT_EQ(Text(named), "PROPOSED");
  EXPECT_EQ(Decide(named), "PROPOSED") << "node2 has voted for another save";
  EXPECT_EQ(VoteFor(second_, named, Proposal("step_1")), "PROPOSED");
  EXPECT_EQ(VoteFor(second_, named, Proposal("step_2")), "PROPOSED") << "it is not written any more";
  EXPECT_EQ(Decide(named), "ADMITTED");
}

TEST_P(PreparedSave, VoteForOtherRanksDoesNotCount) {
  const Save save = *Open(1);
  VoteFor(first_, save, Proposal("step_1"));
  VoteFor(second_, save, Proposal("step_1", {1}));
  EXPECT_EQ(Text(DecideOpen(save, Proposal("step_1"), /*may_wait=*/false)), "PROPOSED");
}

TEST_P(PreparedSave, EndsAtTheFirstNoAndHasItsNameThen) {
  const Save save = *Open(1);
  EXPECT_EQ(VoteFor(first_, save, Proposal("step_1")), "OPEN");
  EXPECT_EQ(VoteFor(second_, save, Proposal("step_1"), "POOL_EXHAUSTED"), "OPEN");
  EXPECT_EQ(Text(DecideOpen(save, Proposal("step_1"))), "ENDED POOL_EXHAUSTED of node2, ranks 1");
  EXPECT_EQ(Text(Begin(second_, "step_1")), "ENDED POOL_EXHAUSTED of node2, ranks 1");
}

TEST_P(PreparedSave, SaveThatHasASequenceGetsNoOther) {
  const Save save = *Open(1);
  EXPECT_EQ(Begin(second_, "step_1").sequence, 2);
  VoteFor(first_, save, Proposal("step_1"));
  EXPECT_EQ(Text(DecideOpen(save, Proposal("step_1"), /*may_wait=*/false)), "ENDED UNUSED");
  EXPECT_EQ(Begin(first_, "step_1").sequence, 2);
}

TEST_P(PreparedSave, SaveThatHadASequenceBeforeGetsNoOther) {
  EXPECT_EQ(Begin(second_, "step_1").sequence, 1);
  const Save save = *Open(2);
  VoteFor(first_, save, Proposal("step_1"));
  EXPECT_EQ(Text(DecideOpen(save, Proposal("step_1"), /*may_wait=*/false)), "ENDED UNUSED");
}

TEST_P(PreparedSave, VoteThatDoesNotSayForWhichSaveIsNone) {
  const Save save = *Open(1);
  EXPECT_EQ(Vote(first_, save), "OPEN");
  EXPECT_EQ(nodes_.Read(LedgerKeys(nodes_.prefix() + "run/").Vote(1, "node1")), "(none)");
}

// Saves are published in the order of their sequences.
TEST_P(PreparedSave, IsOfNoUseWhenALaterSequenceWasGiven) {
  const Save save = *Open(1);
  EXPECT_EQ(Close(save), "OPEN");
  EXPECT_EQ(Begin(second_, "step_2").sequence, 2);
  VoteFor(first_, save, Proposal("step_1"));
  VoteFor(second_, save, Proposal("step_1"));
  EXPECT_EQ(Text(DecideOpen(save, Proposal("step_1"))), "ENDED UNUSED");
  const Save next = *Open(3);
  EXPECT_EQ(Begin(second_, "step_4").sequence, 4);
  EXPECT_EQ(Close(next), "ENDED UNUSED");
}

TEST_P(PreparedSave, IsMadeWithTheNextSequenceAlone) {
  Begin(first_, "step_1");
  const auto open = Open(1);
  EXPECT_EQ(Text(open), "PROPOSED") << "of another save";
  EXPECT_EQ(Open(5)->sequence, 1) << "the last that was given";
  EXPECT_EQ(Open(5)->state.phase(), ledger::v1::SaveState::PHASE_UNSPECIFIED);
  EXPECT_EQ(Text(*Open(2)), "OPEN");
}

TEST_P(PreparedSave, AttemptThatIsOverGetsNone) {
  const Save save = *Open(1);
  VoteFor(first_, save, Proposal("step_1"));
  VoteFor(second_, save, Proposal("step_1"));
  Activate(Join(first_, 0, "later"));
  EXPECT_EQ(Text(DecideOpen(save, Proposal("step_1"))), "ENDED FENCED");
}

// ---- the last vote admits

class LastVote : public PreparedSave {
 protected:
  LedgerKeys keys() const { return LedgerKeys(nodes_.prefix() + "run/"); }
  std::vector<etcdserverpb::KeyValue> List(const std::string& key, bool is_prefix) {
    etcdserverpb::RangeRequest request;
    request.set_key(key);
    if (is_prefix) request.set_range_end(PrefixEnd(key));
    const auto found = Await<absl::StatusOr<etcdserverpb::RangeResponse>>([&](auto answer) {
      nodes_.ClientOf(*first_.registration)->Range(request, "testing", std::move(answer));
    });
    EXPECT_TRUE(found.ok()) << found.status();
    return {found->kvs().begin(), found->kvs().end()};
  }
  // What a node's mirrors show now.
  SaveGuess Shown(int64_t sequence) {
    SaveGuess guess;
    guess.state = List(keys().SaveState(sequence), false);
    guess.active = List(keys().Active(), false);
    guess.voters = SaveGuess::Voters{List(keys().AttemptRanks(1), true),
                                     List(first_.registration->identity().Siblings(), true)};
    return guess;
  }
  std::string State(int64_t sequence) {
    ledger::v1::SaveState state;
    state.ParseFromString(nodes_.Read(keys().SaveState(sequence)));
    return ledger::v1::SaveState::Phase_Name(state.phase());
  }
};
INSTANTIATE_TEST_SUITE_P(, LastVote, ::testing::ValuesIn(AllEtcds(/*seeds=*/20)), NameOf);

TEST_P(LastVote, AdmitsTheSaveWithoutTheCoordinatorWhicheverItIs) {
  int64_t sequence = 0;
  for (const bool first_is_last : {false, true}) {
    const std::string tag = "step_" + std::to_string(++sequence);
    const Save save = *Open(sequence);
    const SaveGuess shown = Shown(sequence);
    VoteFor(first_is_last ? second_ : first_, save, Proposal(tag), "", shown);
    EXPECT_EQ(State(sequence), "OPEN");
    VoteFor(first_is_last ? first_ : second_, save, Proposal(tag), "", shown);
    EXPECT_EQ(State(sequence), "ADMITTED");
    const Save found = Begin(second_, tag);
    EXPECT_EQ(found.sequence, sequence) << "whoever asks finds it";
    EXPECT_EQ(found.state.inflight(), "directory");
    EXPECT_EQ(Text(DecideOpen(save, Proposal(tag))), "ADMITTED");
  }
  EXPECT_EQ(Begin(second_, "step_3").sequence, 3);
}

TEST_P(LastVote, IsTheOneThatEtcdGetsLast) {
  const Save save = *Open(1);
  const SaveGuess shown = Shown(1);
  int answers = 0;
  for (Daemon* daemon : {&first_, &second_}) {
    ledger::v1::NodeVote vote;
    *vote.mutable_proposal() = Proposal("step_1");
    daemon->saves->Vote(save, vote, shown, [&](const absl::StatusOr<VotedSave>&) { ++answers; });
  }
  etcd_.caller().RunUntil([&] { return answers == 2; });
  EXPECT_EQ(State(1), "ADMITTED");
}

TEST_P(LastVote, AdmitsNothingUnlessTheOthersHaveVotedYesForTheSameSave) {
  const Save save = *Open(1);
  const SaveGuess shown = Shown(1);
  VoteFor(second_, save, Proposal("step_2"), "", shown);
  VoteFor(first_, save, Proposal("step_1"), "", shown);
  EXPECT_EQ(State(1), "OPEN") << "another save";
  EXPECT_EQ(VoteFor(second_, save, Proposal("step_1"), "POOL_EXHAUSTED", shown), "OPEN");
  EXPECT_EQ(State(1), "OPEN") << "a no";
  EXPECT_EQ(Text(DecideOpen(save, Proposal("step_1"))), "ENDED POOL_EXHAUSTED of node2, ranks 1");
}

TEST_P(LastVote, NoAdmitsNothing) {
  const Save save = *Open(1);
  const SaveGuess shown = Shown(1);
  VoteFor(first_, save, Proposal("step_1"), "", shown);
  VoteFor(second_, save, Proposal("step_1"), "POOL_EXHAUSTED", shown);
  EXPECT_EQ(State(1), "OPEN");
  VoteFor(second_, save, Proposal("step_1"), "", shown);
  EXPECT_EQ(State(1), "OPEN") << "a yes that is made again";
  VoteFor(first_, save, Proposal("step_2"), "", shown);
  VoteFor(second_, save, Proposal("step_2"), "", shown);
  EXPECT_EQ(State(1), "ADMITTED") << "the no was for another save";
}

TEST_P(LastVote, AdmitsNothingWithTheMemoryOfADaemonThatHasEnded) {
  const Save save = *Open(1);
  const SaveGuess shown = Shown(1);
  VoteFor(second_, save, Proposal("step_1"), "", shown);
  Restart(second_);
  VoteFor(first_, save, Proposal("step_1"), "", shown);
  EXPECT_EQ(State(1), "OPEN");
  VoteFor(second_, save, Proposal("step_1"), "", Shown(1));
  EXPECT_EQ(State(1), "ADMITTED");
}

TEST_P(LastVote, AdmitsNothingOfAnAttemptThatIsOver) {
  const Save save = *Open(1);
  const SaveGuess shown = Shown(1);
  VoteFor(second_, save, Proposal("step_1"), "", shown);
  Activate(Join(first_, 0, "later"));
  VoteFor(first_, save, Proposal("step_1"), "", shown);
  EXPECT_EQ(State(1), "OPEN");
  EXPECT_EQ(Text(DecideOpen(save, Proposal("step_1"))), "ENDED FENCED");
}

TEST_P(LastVote, AdmitsNothingAfterASaveWithALaterSequence) {
  const Save save = *Open(1);
  const SaveGuess shown = Shown(1);
  VoteFor(second_, save, Proposal("step_1"), "", shown);
  EXPECT_EQ(Begin(first_, "step_2").sequence, 2);
  VoteFor(first_, save, Proposal("step_1"), "", shown);
  EXPECT_EQ(State(1), "OPEN");
}

TEST_P(LastVote, AdmitsNothingThatHasASequence) {
  EXPECT_EQ(Begin(second_, "step_1").sequence, 1);
  const Save save = *Open(2);
  const SaveGuess shown = Shown(2);
  VoteFor(first_, save, Proposal("step_1"), "", shown);
  VoteFor(second_, save, Proposal("step_1"), "", shown);
  EXPECT_EQ(State(2), "OPEN");
}

// What is believed of it may be old.
TEST_P(PreparedSave, WrongGuessCostsARequestAndNothingElse) {
  const Save save = *Open(1);
  SaveGuess guess;
  guess.state.emplace_back().set_value(save.state.SerializeAsString());
  guess.state[0].set_key(LedgerKeys(nodes_.prefix() + "run/").SaveState(1));
  EXPECT_EQ(VoteFor(first_, save, Proposal("step_1"), "", guess), "OPEN");
  EXPECT_EQ(VoteFor(first_, save, Proposal("step_1"), "POOL_EXHAUSTED", guess), "OPEN")
      << "it has voted before, and the guess does not know";
  EXPECT_EQ(Text(DecideOpen(save, Proposal("step_1"))), "ENDED POOL_EXHAUSTED of node1, ranks 0");
  EXPECT_EQ(VoteFor(first_, save, Proposal("step_1"), "", guess), "ENDED POOL_EXHAUSTED of node1, ranks 0");
}

}  // namespace
}  // namespace ckptd
