// Saves of a run that several nodes share, on one of them: what the other nodes hear, and what the ranks
// hear.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"
#include "tests/testing/engine_fixture.h"
#include "tests/testing/fake_shared_run.h"
#include "tests/testing/fake_shared_uploads.h"
#include "tests/testing/fake_upload_io.h"

namespace ckptd {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Phase = Authority::Decision;

// Ranks 0 and 1 of four are on this node.
class SharedSavesTest : public EngineTest {
 protected:
  std::unique_ptr<Authority> MakeShared(uint64_t inode) override {
    auto shared = std::make_unique<FakeSharedRun>(ios_.at(inode));
    nodes_ = shared.get();
    return shared;
  }
  void SetUp() override {
    EngineTest::SetUp();
    for (int rank : {0, 1}) {
      sessions_.push_back(Trainer("trainer" + std::to_string(rank)));
      ASSERT_TRUE(JoinHere(sessions_.back(), rank).status().ok());
    }
    nodes_->calls.clear();
  }
  Answer<v1::JoinRunResponse> JoinHere(SessionId session, int rank, std::vector<int> local_ranks = {0, 1},
                                       const std::vector<v1::SaveKey>& orphaned = {}) {
    v1::JoinRunRequest request;
    request.set_root(Attach(session));
    request.set_rank(rank);
    request.set_world_size(4);
    request.set_launch_id("launch");
    for (int local : local_ranks) request.add_local_ranks(local);
    request.mutable_orphaned()->Add(orphaned.begin(), orphaned.end());
    Answer<v1::JoinRunResponse> answer;
    engine_->JoinRun(As(session), request, answer.reply());
    RunQueued();
    return answer;
  }
  std::vector<std::string> Calls() { return std::exchange(nodes_->calls, {}); }
  void Decide(Authority::Decision::Phase phase, const absl::Status& end = absl::OkStatus()) {
    nodes_->Change(save_, phase, 1, end);
    RunQueued();
  }
  void BeginHere(v1::BusyPolicy busy = v1::WAIT) {
    for (int rank : {0, 1}) {
      begins_.push_back(BeginOf(rank, "a", 1, 100));
      begins_.back().set_busy(busy);
      begun_.push_back(Begin(sessions_[rank], begins_.back()));
    }
  }
  void Admit() {
    BeginHere();
    Decide(Phase::kProposed);
    Decide(Phase::kAdmitted);
    nodes_->opens.at(0)(absl::OkStatus());
    RunQueued([&] { return begun_[0].has() && begun_[1].has(); });
  }
  void SealHere() {
    for (int rank : {0, 1}) ASSERT_TRUE(Seal(sessions_[rank], begins_[rank]).status().ok());
  }
  // As a rank waits for a save that it has begun with an earlier daemon.
  Answer<v1::WaitResponse> WaitForEarlier(const std::string& tag, Duration timeout, int64_t sequence = 7) {
    v1::WaitRequest request;
    *request.mutable_key() = Key(0, tag);
    request.set_level(v1::COMMITTED);
    request.set_sequence(sequence);
    request.mutable_timeout()->set_seconds(timeout / std::chrono::seconds(1));
    Answer<v1::WaitResponse> answer;
    engine_->Wait(As(sessions_[0]), request, answer.reply());
    RunQueued();
    return answer;
  }
  // A save that is a checkpoint from now on, and leaves one checkpoint in the root.
  void CommitKeepingOne(const std::string& tag, int64_t sequence) {
    std::vector<Answer<v1::BeginResponse>> begun;
    std::vector<v1::BeginRequest> begins;
    for (int rank : {0, 1}) {
      begins.push_back(BeginOf(rank, tag, sequence, 100));
      begins.back().set_num_kept_ckpts(1);
      begun.push_back(Begin(sessions_[rank], begins.back()));
    }
    const SaveId save{1, tag, 1};
    nodes_->Change(save, Phase::kProposed, sequence);
    RunQueued();
    nodes_->Change(save, Phase::kAdmitted, sequence);
    nodes_->opens.back()(absl::OkStatus());
    RunQueued([&] { return begun[0].has() && begun[1].has(); });
    const size_t parts = nodes_->parts.size();
    for (int rank : {0, 1}) ASSERT_TRUE(Seal(sessions_[rank], begins[rank]).status().ok());
    RunQueued([&] { return nodes_->parts.size() > parts; });
    nodes_->parts.back()("digest");
    nodes_->Change(save, Phase::kCommitted, sequence);
    LoadedCheckpoint loaded;
    loaded.checkpoint.summary.set_tag(tag);
    loaded.checkpoint.summary.set_sequence(sequence);
    loaded.checkpoint.summary.set_attempt(1);
    nodes_->loads.back()(std::move(loaded));
    nodes_->hooks.newest_committed(sequence, KeepLast(1));
    RunQueued();
  }
  static storage::v1::RetentionPolicy KeepLast(int number) {
    storage::v1::RetentionPolicy policy;
    policy.set_last(number);
    return policy;
  }
  // What other nodes have committed.
  void PutInRoot(const std::string& tag, int64_t sequence) {
    CommittedCheckpoint& committed = disks_[1]->committed[sequence];
    committed.summary.set_tag(tag);
    committed.summary.set_sequence(sequence);
  }
  void LookAtRoot() {
    nodes_->hooks.root_changed();
    RunQueued();
  }
  // A rank acts, on any node.
  void ActivateFirstAttempt() {
    nodes_->ledger()->Activate(1, [](const absl::Status& activated) { EXPECT_TRUE(activated.ok()); });
    RunQueued();
  }
  // A rank of a later attempt acts, here or on another node.
  void ActivateLaterAttempt() {
    Ledger::JoinSpec later;
    later.rank = 2;
    later.world_size = 4;
    later.launch_id = "later";
    later.instance = "other";
    nodes_->ledger()->Join(later, [](const absl::StatusOr<int64_t>& attempt) { EXPECT_EQ(*attempt, 2); });
    nodes_->ledger()->Activate(2, [](const absl::Status& activated) { EXPECT_TRUE(activated.ok()); });
    RunQueued();
  }
  absl::Status Error(const char* reason) {
    return MakeError(absl::StatusCode::kAborted, reason, "because of node b");
  }
  Answer<v1::AbortResponse> Abort(const std::string& tag) {
    v1::AbortRequest request;
    *request.mutable_key() = Key(0, tag);
    Answer<v1::AbortResponse> answer;
    engine_->Abort(As(sessions_[0]), request, answer.reply());
    RunQueued();
    return answer;
  }
  int64_t UsedBytes() { return pool_->usage().used_bytes; }

  FakeSharedRun* nodes_ = nullptr;
  const SaveId save_{1, "a", 1};
  std::vector<SessionId> sessions_;
  std::vector<v1::BeginRequest> begins_;
  std::vector<Answer<v1::BeginResponse>> begun_;
};

TEST_F(SharedSavesTest, RanksOfANodeAgreeOnWhichTheyAre) {
  const SessionId other = Trainer("other");
  const auto answer = JoinHere(other, 2, {0, 2});
  EXPECT_EQ(answer.reason(), reason::kInvalidArgument);
  EXPECT_THAT(
      std::string(answer.status().message()),
      HasSubstr("rank 2 says that ranks 0,2 are on this node, and rank 0 of the same launch that ranks "
                "0,1 are"));
}

TEST_F(SharedSavesTest, IsAdmittedWhenAllNodesHaveRoom) {
  BeginHere();
  EXPECT_THAT(Calls(), ElementsAre("Begin a")) << "once for all ranks";
  Decide(Phase::kProposed);
  EXPECT_THAT(Calls(), ElementsAre("Accept a")) << "the ranks of other nodes have no sizes to wait for";
  EXPECT_FALSE(begun_[0].has());
  Decide(Phase::kAdmitted);
  EXPECT_THAT(Calls(), ElementsAre("OpenPart a 1.dir"));
  RunQueued([&] { return begun_[0].has() && begun_[1].has(); });
  EXPECT_EQ(begun_[0].get().sequence(), 1);
}

TEST_F(SharedSavesTest, HasTheSequenceThatTheNodesGiveItAtLast) {
  BeginHere();
  nodes_->Change(save_, Phase::kProposed, 7);
  RunQueued();
  nodes_->Change(save_, Phase::kProposed, 0);  // Another save has got it.
  const SaveId other{1, "b", 1};
  const auto begun = Begin(sessions_[0], BeginOf(0, "b", 1, 100));
  const auto begun_too = Begin(sessions_[1], BeginOf(1, "b", 1, 100));
  nodes_->Change(other, Phase::kProposed, 7);
  nodes_->Change(save_, Phase::kProposed, 8);
  RunQueued();
  nodes_->Change(save_, Phase::kAdmitted, 8);
  nodes_->opens.back()(absl::OkStatus());
  nodes_->Change(other, Phase::kAdmitted, 7);
  nodes_->opens.back()(absl::OkStatus());
  RunQueued([&] { return begun_[0].has() && begun.has(); });
  EXPECT_EQ(begun_[0].get().sequence(), 8);
  EXPECT_EQ(begun.get().sequence(), 7);
}

// Whoever has the sequence for good may be heard of before the save that was to get it has lost it.
TEST_F(SharedSavesTest, GivesUpItsSequenceToTheSaveThatHasIt) {
  BeginHere();
  nodes_->Change(save_, Phase::kProposed, 7);
  RunQueued();
  const auto begun = Begin(sessions_[0], BeginOf(0, "b", 1, 100));
  const auto begun_too = Begin(sessions_[1], BeginOf(1, "b", 1, 100));
  nodes_->Change({1, "b", 1}, Phase::kProposed, 7);
  RunQueued();
  nodes_->Change(save_, Phase::kAdmitted, 8);
  nodes_->opens.back()(absl::OkStatus());
  RunQueued([&] { return begun_[0].has(); });
  EXPECT_EQ(begun_[0].get().sequence(), 8);
}

TEST_F(SharedSavesTest, EndsWhatAnEarlierDaemonHadSealedAndThisOneHasNot) {
  BeginHere();
  Decide(Phase::kSealed);
  EXPECT_THAT(Calls(), ElementsAre("Begin a", "Fail a STAGED_LOST"));
}

TEST_F(SharedSavesTest, OtherNodesHearForWhichRanksASaveIs) {
  v1::BeginRequest request = BeginOf(0, "a", 1, 100);
  for (int rank : {3, 0}) request.add_ranks(rank);
  const auto begun = Begin(sessions_[0], request);
  EXPECT_THAT(nodes_->begun_for, ElementsAre(0, 3));
  Decide(Phase::kProposed);
  EXPECT_THAT(Calls(), ElementsAre("Begin a", "Accept a")) << "rank 1 is not waited for";
}

TEST_F(SharedSavesTest, IsSealedAndCommittedWhenAllNodesSaySo) {
  Admit();
  Calls();
  SealHere();
  EXPECT_EQ(Calls().front(), "Sealed a");
  auto sealed = Wait(sessions_[0], Key(0, "a"), v1::SEALED);
  EXPECT_FALSE(sealed.has()) << "other nodes still copy";
  RunQueued([&] { return !nodes_->parts.empty(); });
  EXPECT_EQ(nodes_->records.size(), 2u) << "the ranks of this node";
  nodes_->parts[0]("digest");
  RunQueued();
  EXPECT_EQ(Calls().back(), "Durable a digest");
  Decide(Phase::kSealed);
  EXPECT_EQ(sealed.get().checkpoint().level(), v1::SEALED);
  auto committed = Wait(sessions_[0], Key(0, "a"));
  Decide(Phase::kCommitted);
  EXPECT_FALSE(committed.has());
  LoadedCheckpoint loaded;
  loaded.checkpoint.summary.set_tag("a");
  loaded.checkpoint.summary.set_sequence(1);
  nodes_->loads.at(0)(std::move(loaded));
  RunQueued();
  EXPECT_EQ(committed.get().checkpoint().level(), v1::COMMITTED);
  EXPECT_THAT(Tags(), ElementsAre("a"));
}

TEST_F(SharedSavesTest, IsCommittedAlsoIfThisNodeCannotReadIt) {
  Admit();
  SealHere();
  RunQueued([&] { return !nodes_->parts.empty(); });
  nodes_->parts[0]("digest");
  auto committed = Wait(sessions_[0], Key(0, "a"));
  Decide(Phase::kCommitted);
  nodes_->loads.at(0)(absl::UnavailableError("stale"));
  RunQueued();
  EXPECT_EQ(committed.get().checkpoint().level(), v1::COMMITTED);
}

TEST_F(SharedSavesTest, OtherNodesHearOfAnAbortUntilTheyHaveDecidedToPublish) {
  Admit();
  SealHere();
  RunQueued([&] { return !nodes_->parts.empty(); });
  nodes_->parts[0]("digest");
  Decide(Phase::kSealed);
  Calls();
  EXPECT_TRUE(Abort("a").status().ok());
  EXPECT_THAT(Calls(), ElementsAre("Fail a SAVE_ABORTED"));
  auto waiting = Wait(sessions_[0], Key(0, "a"));
  Decide(Phase::kPublishing);
  EXPECT_TRUE(Abort("a").status().ok()) << "it has asked for that, and does not know what has become of it";
  EXPECT_THAT(Calls(), ElementsAre());
  Decide(Phase::kEnded, Error(reason::kSaveAborted));
  EXPECT_EQ(waiting.get().checkpoint().error().reason(), reason::kSaveAborted);
}

TEST_F(SharedSavesTest, IsNotAbortedWhenTheNodesHaveDecidedToPublish) {
  Admit();
  SealHere();
  RunQueued([&] { return !nodes_->parts.empty(); });
  nodes_->parts[0]("digest");
  Calls();
  auto sealed = Wait(sessions_[0], Key(0, "a"), v1::SEALED);
  Decide(Phase::kPublishing);
  EXPECT_EQ(sealed.get().checkpoint().level(), v1::SEALED) << "that is left out where it is over";
  EXPECT_EQ(Abort("a").reason(), reason::kSealed);
  Decide(Phase::kCommitted);
  EXPECT_EQ(Abort("a").reason(), reason::kSealed) << "while it is read";
  EXPECT_THAT(Calls(), ElementsAre("LoadCheckpoint a 1"));
}

TEST_F(SharedSavesTest, IsCommittedIfThatWasDecidedBeforeItsAbortWasHeard) {
  Admit();
  SealHere();
  RunQueued([&] { return !nodes_->parts.empty(); });
  nodes_->parts[0]("digest");
  EXPECT_TRUE(Abort("a").status().ok());
  auto committed = Wait(sessions_[0], Key(0, "a"));
  Decide(Phase::kCommitted);
  nodes_->loads.at(0)(absl::UnavailableError("stale"));
  RunQueued();
  EXPECT_EQ(committed.get().checkpoint().level(), v1::COMMITTED);
}

TEST_F(SharedSavesTest, EndsWithoutAPartIfThatCouldNotBeOpened) {
  BeginHere();
  Decide(Phase::kProposed);
  Decide(Phase::kAdmitted);
  nodes_->opens.at(0)(ErrnoError(EACCES, "opening the directory"));
  RunQueued();
  EXPECT_EQ(Calls().back(), "Fail a EACCES");
  nodes_->hooks.released(save_);
  Decide(Phase::kEnded, Error("EACCES"));
  EXPECT_EQ(ios_.at(1)->calls["Discard"], 0) << "there is nothing";
  EXPECT_EQ(UsedBytes(), 0);
}

TEST_F(SharedSavesTest, OtherNodesHearThatThisOneIsDrained) {
  ASSERT_TRUE(engine_->SetDrained(Caller{.privileged = true}, v1::DrainRequest()).ok());
  BeginHere();
  Decide(Phase::kProposed);
  EXPECT_EQ(Calls().back(), "Fail a NODE_DRAINED");
  EXPECT_THAT(std::string(nodes_->failed.message()), HasSubstr("takes no new saves: uid 0 has drained it"));
  nodes_->hooks.released(save_);
  Decide(Phase::kEnded, nodes_->failed);
  EXPECT_EQ(begun_[0].reason(), reason::kNodeDrained);
  EXPECT_EQ(begun_[1].reason(), reason::kNodeDrained);
  EXPECT_TRUE(engine_->GetStatus(Caller{.privileged = true}).drain().drained());
}

// DRAINING would have the ranks of all nodes begin it again, and hear the same again, until their deadline.
TEST_F(SharedSavesTest, EndsForGoodIfTheDaemonIsAskedToEndWhileTheSaveBegins) {
  BeginHere();
  engine_->Drain([] {});
  Decide(Phase::kProposed);
  EXPECT_EQ(Calls().back(), "Fail a STAGED_LOST");
  nodes_->hooks.released(save_);
  Decide(Phase::kEnded, nodes_->failed);
  EXPECT_EQ(begun_[0].reason(), reason::kStagedLost);
}

TEST_F(SharedSavesTest, FailsForItsRanksWhenTheNodesHaveEndedIt) {
  Admit();
  Calls();
  engine_->SessionClosed(sessions_[1], "killed");
  RunQueued();
  EXPECT_THAT(Calls(), ElementsAre("Fail a SESSION_LOST"));
  auto waiting = Wait(sessions_[0], Key(0, "a"));
  EXPECT_FALSE(waiting.has()) << "the other nodes have not heard it";
  Decide(Phase::kEnded, Error(reason::kSessionLost));
  EXPECT_EQ(waiting.get().checkpoint().error().reason(), reason::kSessionLost);
  EXPECT_THAT(Calls(), ElementsAre()) << "the nodes know it";
}

TEST_F(SharedSavesTest, KeepsItsMemoryUntilItIsReleased) {
  Admit();
  Decide(Phase::kEnded, Error(reason::kNoSpace));
  EXPECT_GT(UsedBytes(), 0);
  nodes_->hooks.released(save_);
  RunQueued();
  EXPECT_EQ(UsedBytes(), 0);
}

TEST_F(SharedSavesTest, GivesItsMemoryBackAtTheEndIfItWasReleasedBefore) {
  Admit();
  nodes_->hooks.released(save_);
  RunQueued();
  EXPECT_GT(UsedBytes(), 0) << "the ranks still write there";
  Decide(Phase::kEnded, Error(reason::kNoSpace));
  EXPECT_EQ(UsedBytes(), 0);
}

TEST_F(SharedSavesTest, FailsWithoutTheOtherNodesWhenItTakesNoPartAnyLonger) {
  BeginHere();
  Decide(Phase::kProposed);
  nodes_->hooks.failed(save_, Error(reason::kFenced));
  RunQueued();
  EXPECT_EQ(begun_[0].reason(), reason::kFenced);
  EXPECT_GT(UsedBytes(), 0) << "promised";
  nodes_->hooks.released(save_);
  RunQueued();
  EXPECT_EQ(UsedBytes(), 0);
}

TEST_F(SharedSavesTest, EndsForRanksThatBeginASaveThatHasEnded) {
  BeginHere();
  Decide(Phase::kEnded, Error(reason::kRanksMissing));
  EXPECT_EQ(begun_[0].reason(), reason::kRanksMissing);
  EXPECT_EQ(begun_[1].reason(), reason::kRanksMissing);
}

TEST_F(SharedSavesTest, IsGivenUpIfItsRanksEndBeforeItHasItsSequence) {
  BeginHere();
  for (SessionId session : sessions_) engine_->SessionClosed(session, "killed");
  Calls();
  Decide(Phase::kProposed);
  EXPECT_THAT(Calls(), ElementsAre("Fail a SESSION_LOST"));
}

TEST_F(SharedSavesTest, IsNotAdmittedWithMemoryThatAnEarlierDaemonHad) {
  BeginHere();
  Decide(Phase::kAdmitted);
  EXPECT_EQ(Calls().back(), "Fail a STAGED_LOST");
}

TEST_F(SharedSavesTest, AnOutcomeThatNobodyKnowsIsIndeterminate) {
  Admit();
  SealHere();
  RunQueued([&] { return !nodes_->parts.empty(); });
  nodes_->parts[0]("digest");
  auto waiting = Wait(sessions_[0], Key(0, "a"));
  Decide(Phase::kUnknown, Error(reason::kIndeterminate));
  EXPECT_EQ(waiting.get().checkpoint().level(), v1::INDETERMINATE);
}

TEST_F(SharedSavesTest, ItsAdmissionDeadlineIsThatOfAllNodes) {
  BeginHere();
  Decide(Phase::kProposed);
  Calls();
  AdvanceClock(std::chrono::seconds(31));
  EXPECT_THAT(Calls(), ElementsAre());
  EXPECT_FALSE(begun_[0].has());
}

TEST_F(SharedSavesTest, SkipEndsOnAllNodesWhenTheFileSystemOfOneHangs) {
  ios_[1]->hold_target = true;
  BeginHere(v1::SKIP);
  Decide(Phase::kProposed);
  EXPECT_THAT(Calls(), ElementsAre("Begin a", "SkipAfter a 3"));
  AdvanceClock(std::chrono::seconds(2));
  EXPECT_THAT(Calls(), ElementsAre());
  AdvanceClock(std::chrono::seconds(2));
  EXPECT_THAT(Calls(), ElementsAre("Fail a SKIPPED"));
  EXPECT_FALSE(begun_[0].has()) << "the nodes decide how it ends";
  Decide(Phase::kEnded, Error(reason::kSkipped));
  EXPECT_EQ(begun_[0].get().level(), v1::SKIPPED);
  EXPECT_EQ(begun_[1].get().level(), v1::SKIPPED);
  ios_[1]->hold_target = false;
  ios_[1]->ReleaseHeld();
}

TEST_F(SharedSavesTest, SkipIsHeardBeforeTheSaveHasItsSequence) {
  BeginHere(v1::SKIP);
  nodes_->hooks.failed(save_, Error(reason::kSkipped));
  RunQueued();
  EXPECT_EQ(begun_[0].get().level(), v1::SKIPPED);
  EXPECT_THAT(begun_[1].get().error().message(), HasSubstr("because of node b"));
}

TEST_F(SharedSavesTest, BeginDoesNotWaitBeyondItsTimeForEtcdToLetItsAttemptAct) {
  nodes_->activates_late = true;
  BeginHere(v1::SKIP);
  auto waits = Begin(sessions_[0], BeginOf(0, "b", 1, 100));
  AdvanceClock(std::chrono::seconds(4));
  EXPECT_EQ(begun_[0].get().level(), v1::SKIPPED);
  EXPECT_THAT(begun_[0].get().error().message(), HasSubstr("etcd has not answered"));
  EXPECT_FALSE(waits.has());
  AdvanceClock(std::chrono::seconds(27));
  EXPECT_EQ(ReasonOf(waits.status()), reason::kAdmissionTimeout);
  nodes_->AnswerLate();
  RunQueued();
  EXPECT_THAT(Calls(), ElementsAre()) << "its ranks have heard its end";
}

// They hear from this node what it has waited for, and not only that it had no room.
TEST_F(SharedSavesTest, OtherNodesHearWhichRanksOfThisNodeHaveNotBegun) {
  begun_.push_back(Begin(sessions_[0], BeginOf(0, "a", 1, 100)));
  Decide(Phase::kProposed);
  Calls();
  AdvanceClock(std::chrono::seconds(31));
  EXPECT_THAT(Calls(), ElementsAre("Fail a RANKS_MISSING"));
  EXPECT_EQ(DetailsOf(nodes_->failed).at("ranks"), "1");
  EXPECT_THAT(std::string(nodes_->failed.message()), HasSubstr("LOCAL_WORLD_SIZE"));
}

TEST_F(SharedSavesTest, HoldsItsOwnRanksAloneToTheCommitDeadline) {
  Admit();
  ASSERT_TRUE(Seal(sessions_[0], begins_[0]).status().ok());
  Calls();
  AdvanceClock(std::chrono::seconds(601));
  EXPECT_EQ(Calls().front(), "Fail a RANKS_MISSING");
}

TEST_F(SharedSavesTest, WritesTheRecordOfItsPartOnceAlsoIfTheRootIsScannedMeanwhile) {
  Admit();
  SealHere();
  RunQueued([&] { return !nodes_->parts.empty(); });
  nodes_->hooks.root_changed();
  RunQueued();
  EXPECT_EQ(nodes_->parts.size(), 1u);
}

TEST_F(SharedSavesTest, WritesTheRecordOfItsPartWhenTheFilesOfAllItsRanksAreDurable) {
  Admit();
  ASSERT_TRUE(Seal(sessions_[0], begins_[0]).status().ok());
  AdvanceClock(std::chrono::seconds(2));  // Longer than rank 0's files wait for the copy of rank 1.
  RunQueued([&] { return ios_.at(1)->calls["WritePart"] == 1; });
  RunQueued();
  EXPECT_TRUE(nodes_->parts.empty());
}

TEST_F(SharedSavesTest, KeepsItsMemoryWhileTheRecordOfItsPartIsWritten) {
  Admit();
  SealHere();
  RunQueued([&] { return !nodes_->parts.empty(); });
  nodes_->hooks.released(save_);
  Decide(Phase::kEnded, Error(reason::kNoSpace));
  EXPECT_GT(UsedBytes(), 0);
  nodes_->parts[0]("digest");
  RunQueued();
  EXPECT_EQ(UsedBytes(), 0);
}

TEST_F(SharedSavesTest, OtherNodesHearThatTheRecordOfItsPartCouldNotBeWritten) {
  Admit();
  SealHere();
  RunQueued([&] { return !nodes_->parts.empty(); });
  Calls();
  nodes_->parts[0](Error(reason::kNoSpace));
  RunQueued();
  EXPECT_THAT(Calls(), ElementsAre("Fail a NO_SPACE"));
  EXPECT_THAT(std::string(nodes_->failed.message()),
              AllOf(HasSubstr(" of a in the root "), HasSubstr("node b")));
}

TEST_F(SharedSavesTest, LoadsACheckpointOnceHoweverOftenItIsHeardOf) {
  Admit();
  SealHere();
  RunQueued([&] { return !nodes_->parts.empty(); });
  nodes_->parts[0]("digest");
  Decide(Phase::kCommitted);
  Decide(Phase::kCommitted);
  EXPECT_EQ(nodes_->loads.size(), 1u);
}

TEST_F(SharedSavesTest, OtherNodesHearOnceThatItFails) {
  Admit();
  Calls();
  for (SessionId session : sessions_) engine_->SessionClosed(session, "killed");
  RunQueued();
  EXPECT_THAT(Calls(), ElementsAre("Fail a SESSION_LOST"));
}

TEST_F(SharedSavesTest, WaitsForTheRanksOfOtherNodesBeyondTheCommitDeadline) {
  Admit();
  SealHere();
  RunQueued([&] { return !nodes_->parts.empty(); });
  Calls();
  AdvanceClock(std::chrono::seconds(601));
  EXPECT_THAT(Calls(), ElementsAre());
}

TEST_F(SharedSavesTest, IsGivenUpWhenALaterAttemptActsOnAnotherNode) {
  Admit();
  Calls();
  ActivateLaterAttempt();
  EXPECT_THAT(Calls(), ElementsAre("Fail a FENCED"));
}

TEST_F(SharedSavesTest, IsLeftToAllNodesOnceItsRanksHaveSealedThoughALaterAttemptActs) {
  Admit();
  SealHere();
  RunQueued([&] { return !nodes_->parts.empty(); });
  Calls();
  ActivateLaterAttempt();
  EXPECT_THAT(Calls(), ElementsAre());
}

TEST_F(SharedSavesTest, CheckpointsAreRemovedByTheNodeThatCoordinates) {
  CommitKeepingOne("a", 1);
  CommitKeepingOne("b", 2);
  EXPECT_THAT(disks_[1]->evicted, ElementsAre());
  nodes_->leads = true;
  nodes_->hooks.leadership_changed();
  PutInRoot("a", 1);
  PutInRoot("b", 2);
  LookAtRoot();  // As each coordinator does.
  EXPECT_THAT(disks_[1]->evicted, ElementsAre("a"));
}

TEST_F(SharedSavesTest, OperatorHearsThatThisNodeNoLongerCoordinatesBecauseItsFileSystemHangs) {
  CommitKeepingOne("a", 1);
  observer_.warnings.clear();
  nodes_->hooks.stepped_down(std::chrono::seconds(60));
  EXPECT_THAT(observer_.warnings, ElementsAre(AllOf(HasSubstr("this node no longer coordinates /"),
                                                    HasSubstr("not answered for 60 s"))));
}

TEST_F(SharedSavesTest, OtherNodesHearWhichCheckpointsItsRanksKeep) {
  std::vector<v1::BeginRequest> begins = {BeginOf(0, "a", 1, 100), BeginOf(1, "a", 1, 100)};
  begins[1].set_num_kept_ckpts(2);  // One rank of the node names it.
  for (int rank : {0, 1}) begun_.push_back(Begin(sessions_[rank], begins[rank]));
  Decide(Phase::kProposed);
  ASSERT_TRUE(nodes_->kept.has_value());
  EXPECT_EQ(nodes_->kept->last(), 2);
}

TEST_F(SharedSavesTest, NamesNoPolicyWhereNoRankDoes) {
  BeginHere();
  Decide(Phase::kProposed);
  EXPECT_THAT(Calls(), ElementsAre("Begin a", "Accept a"));
  EXPECT_FALSE(nodes_->kept.has_value());
}

// No rank of this node saves; it may have started after the others had committed.
TEST_F(SharedSavesTest, CoordinatorRemovesWhatThePolicyOfOtherNodesRanksDoesNotKeep) {
  nodes_->leads = true;
  ActivateFirstAttempt();
  for (int64_t sequence : {1, 2, 3}) PutInRoot("step" + std::to_string(sequence), sequence);
  LookAtRoot();
  EXPECT_THAT(disks_[1]->evicted, ElementsAre()) << "the policy is not known";
  nodes_->hooks.newest_committed(3, KeepLast(2));
  RunQueued();
  EXPECT_THAT(disks_[1]->evicted, ElementsAre("step1"));
  PutInRoot("step4", 4);
  nodes_->hooks.newest_committed(4, KeepLast(2));
  RunQueued();
  EXPECT_THAT(disks_[1]->evicted, ElementsAre("step1")) << "the root was not looked at";
  LookAtRoot();
  EXPECT_THAT(disks_[1]->evicted, ElementsAre("step1", "step2"));
}

TEST_F(SharedSavesTest, NothingIsRemovedWhileThePolicyOfTheNewestCheckpointIsNotKnown) {
  nodes_->leads = true;
  ActivateFirstAttempt();
  nodes_->hooks.newest_committed(2, KeepLast(1));
  for (int64_t sequence : {1, 2, 3}) PutInRoot("step" + std::to_string(sequence), sequence);
  LookAtRoot();
  EXPECT_THAT(disks_[1]->evicted, ElementsAre());
  nodes_->hooks.newest_committed(3, std::nullopt);  // It keeps all.
  RunQueued();
  EXPECT_THAT(disks_[1]->evicted, ElementsAre());
  nodes_->hooks.newest_committed(2, KeepLast(1));  // Late.
  RunQueued();
  EXPECT_THAT(disks_[1]->evicted, ElementsAre());
}

TEST_F(SharedSavesTest, NothingIsRemovedWhileItIsNotKnownWhatTheActingAttemptResumesFrom) {
  nodes_->leads = true;
  for (int64_t sequence : {1, 2}) PutInRoot("step" + std::to_string(sequence), sequence);
  LookAtRoot();
  nodes_->hooks.newest_committed(2, KeepLast(1));
  RunQueued();
  EXPECT_THAT(disks_[1]->evicted, ElementsAre());
  ActivateFirstAttempt();
  EXPECT_THAT(disks_[1]->evicted, ElementsAre("step1"));
}

TEST_F(SharedSavesTest, CoordinatorLeavesCheckpointsAloneThatALaunchCouldNotResumeFrom) {
  PutInRoot("other model", 2);
  LookAtRoot();
  nodes_->leads = true;
  nodes_->hooks.leadership_changed();
  LookAtRoot();
  ActivateFirstAttempt();
  nodes_->ledger()->DecideResume(1, {"other model", 2}, [](const auto& choice) { EXPECT_TRUE(choice.ok()); });
  nodes_->ledger()->ResumeFailed(1, 2);
  CommitKeepingOne("b", 6);
  CommitKeepingOne("c", 7);
  EXPECT_THAT(Tags(), ElementsAre("c", "other model"));
}

// The state of the newest checkpoint may be another one than that of those which were there when the ledger
// was asked.
TEST_F(SharedSavesTest, WhatIsLeftAloneIsAskedAgainIfACheckpointComesMeanwhile) {
  PutInRoot("other model", 2);
  LookAtRoot();
  nodes_->leads = true;
  nodes_->hooks.leadership_changed();
  LookAtRoot();
  ActivateFirstAttempt();
  nodes_->ledger()->DecideResume(1, {"other model", 2}, [](const auto& choice) { EXPECT_TRUE(choice.ok()); });
  nodes_->ledger()->ResumeFailed(1, 2);
  nodes_->answers_late = true;
  nodes_->hooks.newest_committed(6, KeepLast(1));  // It is not seen yet.
  PutInRoot("b", 6);
  disks_[1]->committed[6].summary.set_attempt(1);
  LookAtRoot();
  nodes_->answers_late = false;
  nodes_->AnswerLate();
  RunQueued();
  EXPECT_THAT(disks_[1]->evicted, ElementsAre());
}

// Two launches have saved since the ledger was asked last, perhaps by another coordinator.
TEST_F(SharedSavesTest, NewCoordinatorTellsTheLedgerOfEachLaunchThatHasSaved) {
  PutInRoot("other model", 2);
  LookAtRoot();
  ActivateFirstAttempt();
  nodes_->ledger()->DecideResume(1, {"other model", 2}, [](const auto& choice) { EXPECT_TRUE(choice.ok()); });
  nodes_->ledger()->ResumeFailed(1, 2);
  ActivateLaterAttempt();
  PutInRoot("b", 6);
  disks_[1]->committed[6].summary.set_attempt(1);
  PutInRoot("c", 7);
  disks_[1]->committed[7].summary.set_attempt(2);
  nodes_->leads = true;
  nodes_->hooks.leadership_changed();
  nodes_->hooks.newest_committed(7, KeepLast(1));
  LookAtRoot();
  EXPECT_THAT(Tags(), ElementsAre("c", "other model"));
}

// The policy of a save is heard before its checkpoint is read: then the ledger is asked about the launch of
// an older one, which could resume.
TEST_F(SharedSavesTest, NothingIsRemovedBeforeTheCheckpointIsSeenWhoseSaveNamesThePolicy) {
  PutInRoot("one_1", 1);
  PutInRoot("one_2", 2);
  LookAtRoot();
  nodes_->leads = true;
  nodes_->hooks.leadership_changed();
  LookAtRoot();
  ActivateFirstAttempt();
  nodes_->ledger()->DecideResume(1, {"one_2", 2}, [](const auto& choice) { EXPECT_TRUE(choice.ok()); });
  nodes_->ledger()->ResumeFailed(1, 2);
  nodes_->hooks.newest_committed(6, KeepLast(1));
  RunQueued();
  EXPECT_THAT(disks_[1]->evicted, ElementsAre());
  PutInRoot("other_1", 6);
  disks_[1]->committed[6].summary.set_attempt(1);
  LookAtRoot();
  EXPECT_THAT(disks_[1]->evicted, ElementsAre());
  PutInRoot("other_2", 7);
  disks_[1]->committed[7].summary.set_attempt(1);
  nodes_->hooks.newest_committed(7, KeepLast(1));
  LookAtRoot();
  EXPECT_THAT(disks_[1]->evicted, ElementsAre("other_1"));
}

// The pointer file may have another checkpoint's name since this node has coordinated last, or be all that
// keeps one.
TEST_F(SharedSavesTest, NothingIsRemovedBeforeTheNewCoordinatorHasReadThePointerFiles) {
  ActivateFirstAttempt();
  for (int64_t sequence : {1, 2, 3}) PutInRoot("step" + std::to_string(sequence), sequence);
  LookAtRoot();
  nodes_->hooks.newest_committed(3, KeepLast(1));
  nodes_->leads = true;
  nodes_->hooks.leadership_changed();
  RunQueued();
  EXPECT_THAT(disks_[1]->evicted, ElementsAre());
  (*disks_[1]->committed[1].summary.mutable_pointers())["BEST"] = "step1";
  LookAtRoot();
  EXPECT_THAT(disks_[1]->evicted, ElementsAre("step2"));
}

TEST_F(SharedSavesTest, PolicyOfItsOwnRanksIsNotThatOfTheRun) {
  nodes_->leads = true;
  CommitKeepingOne("a", 1);
  nodes_->hooks.newest_committed(2, std::nullopt);  // Another one was faster.
  CommitKeepingOne("b", 2);
  EXPECT_THAT(disks_[1]->evicted, ElementsAre());
}

TEST_F(SharedSavesTest, DamagedCheckpointsDoNotCountWhereOtherNodesHaveNamedThePolicy) {
  nodes_->leads = true;
  ActivateFirstAttempt();
  for (int64_t sequence : {1, 2, 3}) PutInRoot("step" + std::to_string(sequence), sequence);
  disks_[1]->committed[3].summary.set_suspect("it diverges");
  disks_[1]->committed[2].damage.emplace();
  LookAtRoot();
  nodes_->hooks.newest_committed(3, KeepLast(1));
  RunQueued();
  EXPECT_THAT(disks_[1]->evicted, ElementsAre()) << "of the good ones there is one";
}

TEST_F(SharedSavesTest, PolicyThatIsHeardOfLateDoesNotReplaceThatOfANewerSave) {
  nodes_->leads = true;
  ActivateFirstAttempt();
  for (int64_t sequence : {1, 2}) PutInRoot("step" + std::to_string(sequence), sequence);
  LookAtRoot();
  nodes_->hooks.newest_committed(3, std::nullopt);  // It keeps all, and the root does not show it yet.
  nodes_->hooks.newest_committed(2, KeepLast(1));
  RunQueued();
  EXPECT_THAT(disks_[1]->evicted, ElementsAre());
}

// A coordinator that has lost its leadership, and does not know it, would scan and fail for ever.
TEST_F(SharedSavesTest, RemovalThatHasFailedIsNotTriedAgainBeforeTheNextSave) {
  nodes_->leads = true;
  ActivateFirstAttempt();
  for (int64_t sequence : {1, 2}) PutInRoot("step" + std::to_string(sequence), sequence);
  ios_.at(1)->errors["Evict"] = absl::FailedPreconditionError("not the coordinator");
  LookAtRoot();
  nodes_->hooks.newest_committed(2, KeepLast(1));
  RunQueued();
  EXPECT_EQ(ios_.at(1)->calls["Evict"], 1);
  ios_.at(1)->errors.clear();
  PutInRoot("step3", 3);
  nodes_->hooks.newest_committed(3, KeepLast(1));
  LookAtRoot();
  EXPECT_THAT(disks_[1]->evicted, ElementsAre("step1", "step2"));
}

// ---- pins

TEST_F(SharedSavesTest, AuthorityPinsForAllNodes) {
  PutInRoot("step1", 1);
  LookAtRoot();
  Calls();
  const Caller operator_ = {0, 0, true};
  Answer<v1::Checkpoint> pinned;
  engine_->SetPinned(operator_, run_ + "/checkpoints/step1", true, pinned.reply());
  RunQueued();
  EXPECT_THAT(Calls(), ElementsAre("Pin step1 1"));
  EXPECT_FALSE(pinned.has()) << "the nodes do not know it yet";
  nodes_->hooks.pin_changed("step1", 1, true);
  nodes_->pinnings.at(0)(absl::OkStatus());
  RunQueued();
  EXPECT_TRUE(pinned.get().pinned());
  Answer<v1::Checkpoint> refused;
  engine_->SetPinned(operator_, run_ + "/checkpoints/step1", false, refused.reply());
  RunQueued();
  nodes_->hooks.pin_changed("step1", 1, false);  // On another node, and pinned again.
  nodes_->hooks.pin_changed("step1", 1, true);
  nodes_->pinnings.at(1)(absl::UnavailableError("etcd is away"));
  RunQueued();
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("etcd is away"));
}

TEST_F(SharedSavesTest, CoordinatorKeepsWhatAnOperatorHasPinnedOnAnotherNode) {
  nodes_->leads = true;
  ActivateFirstAttempt();
  for (int64_t sequence : {1, 2, 3}) PutInRoot("step" + std::to_string(sequence), sequence);
  LookAtRoot();
  nodes_->hooks.pin_changed("step1", 1, true);
  nodes_->hooks.newest_committed(3, KeepLast(1));
  RunQueued();
  EXPECT_THAT(disks_[1]->evicted, ElementsAre("step2"));
  nodes_->hooks.pin_changed("step1", 1, false);
  RunQueued();
  EXPECT_THAT(disks_[1]->evicted, ElementsAre("step2", "step1"));
}

TEST_F(SharedSavesTest, UnpinSucceedsAlsoIfRetentionRemovesTheCheckpointBeforeTheAnswer) {
  nodes_->leads = true;
  ActivateFirstAttempt();
  for (int64_t sequence : {1, 2}) PutInRoot("step" + std::to_string(sequence), sequence);
  LookAtRoot();
  nodes_->hooks.pin_changed("step1", 1, true);
  nodes_->hooks.newest_committed(2, KeepLast(1));
  RunQueued();
  Answer<v1::Checkpoint> unpinned;
  engine_->SetPinned({0, 0, true}, run_ + "/checkpoints/step1", false, unpinned.reply());
  RunQueued();
  nodes_->hooks.pin_changed("step1", 1, false);
  RunQueued();
  ASSERT_THAT(disks_[1]->evicted, ElementsAre("step1"));
  nodes_->pinnings.at(0)(absl::OkStatus());
  RunQueued();
  EXPECT_EQ(unpinned.get().tag(), "step1");
  EXPECT_FALSE(unpinned.get().pinned());
}

TEST_F(SharedSavesTest, ForcedDeletionUnpinsForAllNodesFirst) {
  nodes_->leads = true;
  ActivateFirstAttempt();
  for (int64_t sequence : {1, 2}) PutInRoot("step" + std::to_string(sequence), sequence);
  LookAtRoot();
  nodes_->hooks.pin_changed("step1", 1, true);
  RunQueued();
  Calls();
  v1::DeleteCheckpointRequest request;
  request.set_name(run_ + "/checkpoints/step1");
  request.set_force(true);
  Answer<v1::Checkpoint> deleted;
  engine_->DeleteCheckpoint({0, 0, true}, request, deleted.reply());
  RunQueued();
  EXPECT_THAT(Calls(), ElementsAre("Unpin step1 1"));
  EXPECT_THAT(disks_[1]->evicted, ElementsAre());
  nodes_->hooks.pin_changed("step1", 1, false);
  nodes_->pinnings.at(0)(absl::OkStatus());
  RunQueued();
  EXPECT_TRUE(deleted.status().ok()) << deleted.status();
  EXPECT_THAT(disks_[1]->evicted, ElementsAre("step1"));
}

// ---- reading back

class SharedScrubTest : public SharedSavesTest {
 protected:
  void SetUp() override {
    engine_options_.scrub_period = std::chrono::hours(1);
    engine_options_.scrub_bytes_per_second = 1 << 20;
    SharedSavesTest::SetUp();
    PutInRoot("step1", 1);
    LookAtRoot();
    ios_[1]->calls.clear();
  }
  int ReadsIn(std::chrono::seconds time) {
    for (std::chrono::seconds passed{0}; passed < time; passed += std::chrono::seconds(1))
      AdvanceClock(std::chrono::seconds(1));
    return std::exchange(ios_[1]->calls["OpenCheckpoint"], 0);
  }
};

TEST_F(SharedScrubTest, CoordinatorReadsBackForAllNodes) {
  EXPECT_EQ(ReadsIn(std::chrono::hours(3)), 0);
  nodes_->leads = true;
  EXPECT_GE(ReadsIn(std::chrono::hours(1) + std::chrono::minutes(1)), 1);
}

// ---- saves that an earlier daemon of this node had taken part in

TEST_F(SharedSavesTest, RankHearsTheEndThatTheNodesHaveDecidedAndNotThatItsDaemonHasLostTheSave) {
  ASSERT_TRUE(JoinHere(sessions_[0], 0, {0, 1}, {Key(0, "a"), Key(0, "b")}).status().ok());
  EXPECT_THAT(Calls(), ElementsAre("WhenEnded a", "WhenEnded b"));
  EXPECT_THAT(Failures(), ElementsAre()) << "the other nodes may have committed them";
  auto a = WaitForEarlier("a", std::chrono::hours(1)), b = WaitForEarlier("b", std::chrono::hours(1));
  EXPECT_THAT(Calls(), ElementsAre()) << "it is asked already";
  EXPECT_FALSE(a.has());
  nodes_->ends.at(0)(Phase{.phase = Phase::kCommitted, .sequence = 7});
  nodes_->ends.at(1)(Phase{.phase = Phase::kEnded, .sequence = 8, .end = Error("NODE_LOST")});
  EXPECT_EQ(a.get().checkpoint().level(), v1::COMMITTED);
  EXPECT_EQ(a.get().checkpoint().sequence(), 7);
  EXPECT_EQ(b.get().checkpoint().level(), v1::FAILED);
  EXPECT_EQ(b.get().checkpoint().error().reason(), "NODE_LOST");
  EXPECT_THAT(Failures(), ElementsAre("b NODE_LOST"));
  EXPECT_EQ(WaitForEarlier("a", std::chrono::hours(1)).get().checkpoint().level(), v1::COMMITTED);
  EXPECT_THAT(Calls(), ElementsAre()) << "it is known";
}

TEST_F(SharedSavesTest, WaitForASaveWhoseEndIsNotKnownYetEndsAtItsDeadline) {
  auto late = WaitForEarlier("a", std::chrono::seconds(10));
  AdvanceClock(std::chrono::seconds(11));
  EXPECT_EQ(late.get().checkpoint().level(), v1::STAGED);
  EXPECT_EQ(late.get().checkpoint().sequence(), 7);
  auto patient = WaitForEarlier("a", std::chrono::seconds(10));
  EXPECT_THAT(Calls(), ElementsAre("WhenEnded a"));
  nodes_->ends.at(0)(Phase{.phase = Phase::kUnknown, .sequence = 7, .end = Error("INDETERMINATE")});
  EXPECT_EQ(patient.get().checkpoint().level(), v1::INDETERMINATE);
}

TEST_F(SharedSavesTest, EndThatEtcdHasForgottenIsIndeterminate) {
  ASSERT_TRUE(JoinHere(sessions_[0], 0, {0, 1}, {Key(0, "a")}).status().ok());
  auto begun = WaitForEarlier("a", std::chrono::hours(1));
  auto never = WaitForEarlier("never", std::chrono::hours(1), /*sequence=*/0);
  for (auto& end : nodes_->ends) end(std::nullopt);
  EXPECT_EQ(begun.get().checkpoint().level(), v1::INDETERMINATE);
  EXPECT_EQ(never.reason(), "UNKNOWN_SAVE");
}

// ---- deleting

TEST_F(SharedSavesTest, CoordinatorIsAskedToDelete) {
  for (int64_t sequence : {1, 2}) PutInRoot("step" + std::to_string(sequence), sequence);
  LookAtRoot();
  Calls();
  const auto ask = [&](const std::string& tag, bool force) {
    v1::DeleteCheckpointRequest request;
    request.set_name(run_ + "/checkpoints/" + tag);
    request.set_force(force);
    Answer<v1::Checkpoint> deleted;
    engine_->DeleteCheckpoint({0, 0, true}, request, deleted.reply());
    RunQueued();
    return deleted;
  };
  auto forced = ask("step1", true), kept = ask("step2", false);
  EXPECT_THAT(Calls(), ElementsAre("Delete step1 1 by force", "Delete step2 2"));
  nodes_->deletions.at(0)(absl::OkStatus());
  nodes_->deletions.at(1)(MakeError(absl::StatusCode::kFailedPrecondition, reason::kPinned, "it is pinned"));
  EXPECT_EQ(forced.get().tag(), "step1");
  EXPECT_EQ(kept.reason(), "PINNED");
  EXPECT_THAT(disks_[1]->evicted, ElementsAre());
  EXPECT_EQ(ask("step3", false).reason(), "NO_CHECKPOINT");
  EXPECT_THAT(Calls(), ElementsAre());
}

TEST_F(SharedSavesTest, CoordinatorDeletesWhatAnotherNodeAsksFor) {
  nodes_->leads = true;
  ActivateFirstAttempt();
  for (int64_t sequence : {1, 2}) PutInRoot("step" + std::to_string(sequence), sequence);
  LookAtRoot();
  std::vector<std::string> answers;
  const auto answer = [&](const absl::Status& deleted) { answers.push_back(ReasonOf(deleted)); };
  nodes_->hooks.delete_requested("step1", 1, false, answer);
  nodes_->hooks.delete_requested("step2", 2, false, answer);
  nodes_->hooks.delete_requested("step3", 3, false, answer);
  RunQueued();
  EXPECT_THAT(disks_[1]->evicted, ElementsAre("step1"));
  EXPECT_THAT(answers, ::testing::UnorderedElementsAre("", "CHECKPOINT_KEPT", "NO_CHECKPOINT"));
}

TEST_F(SharedSavesTest, CoordinatorDeletesACheckpointThatTheOtherNodeHasListedFirst) {
  nodes_->leads = true;
  ActivateFirstAttempt();
  PutInRoot("step1", 1);
  LookAtRoot();
  for (int64_t sequence : {2, 3}) PutInRoot("step" + std::to_string(sequence), sequence);
  absl::Status answer = absl::UnknownError("none yet");
  nodes_->hooks.delete_requested("step2", 2, false, [&](const absl::Status& deleted) { answer = deleted; });
  RunQueued();
  EXPECT_EQ(answer, absl::OkStatus());
  EXPECT_THAT(disks_[1]->evicted, ElementsAre("step2"));
}

TEST_F(SharedSavesTest, CoordinatorIsAskedWhatHasBecomeOfASave) {
  const auto resolve = [this](v1::ResolveSaveRequest::Outcome outcome) {
    v1::ResolveSaveRequest request;
    request.set_name(run_ + "/checkpoints/a");
    request.set_outcome(outcome);
    Answer<v1::ResolveSaveResponse> answer;
    engine_->ResolveSave(Caller{0, 0, true}, request, answer.reply());
    RunQueued();
    return answer;
  };
  EXPECT_EQ(resolve(v1::ResolveSaveRequest::OUTCOME_UNSPECIFIED).reason(), reason::kInvalidArgument);
  auto there = resolve(v1::ResolveSaveRequest::IS_CHECKPOINT);
  auto not_there = resolve(v1::ResolveSaveRequest::IS_NO_CHECKPOINT);
  EXPECT_THAT(Calls(), ElementsAre("SettleSave a is a checkpoint", "SettleSave a is none"));
  nodes_->settlings.at(0)(Authority::Settled{7, true});
  nodes_->settlings.at(1)(Error(reason::kOutcomeDiffers));
  EXPECT_EQ(there.get().sequence(), 7);
  EXPECT_TRUE(there.get().is_checkpoint());
  EXPECT_EQ(not_there.reason(), reason::kOutcomeDiffers);
}

// ---- uploads

class SharedSavesWithUploadsTest : public SharedSavesTest {
 protected:
  std::unique_ptr<UploadIo> MakeUploads() override {
    auto io = std::make_unique<FakeUploadIo>();
    io_ = io.get();
    return io;
  }
  void Tick() {
    engine_->Tick();
    RunQueued();
  }
  FakeUploadIo* io_ = nullptr;
};

TEST_F(SharedSavesWithUploadsTest, RetentionWaitsForTheUploadOfWhatItRemoves) {
  FakeSharedUploads& etcd = nodes_->uploaded;
  etcd.etcd.policy.set_url("s3://bucket/run");
  etcd.etcd.policy.set_every(1);
  nodes_->leads = true;
  ActivateFirstAttempt();
  for (int64_t sequence : {1, 2}) PutInRoot("step" + std::to_string(sequence), sequence);
  LookAtRoot();
  nodes_->hooks.newest_committed(2, KeepLast(1));
  RunQueued();
  EXPECT_THAT(disks_[1]->evicted, ElementsAre()) << "what is uploaded is not known";
  Tick();
  etcd.AnswerRead();
  etcd.AnswerWrite();
  Tick();
  EXPECT_THAT(disks_[1]->evicted, ElementsAre()) << "it waits";
  io_->EndUpload(100);
  Tick();
  EXPECT_THAT(disks_[1]->evicted, ElementsAre()) << "the next coordinator would not find it";
  etcd.AnswerWrite();
  Tick();
  EXPECT_THAT(disks_[1]->evicted, ElementsAre("step1"));
}

TEST_F(SharedSavesWithUploadsTest, ALaunchMayResumeFromTheBucket) {
  v1::JoinRunRequest request;
  request.set_root(Attach(sessions_[0]));
  request.set_world_size(4);
  request.set_launch_id("with upload");
  for (int local : {0, 1}) request.add_local_ranks(local);
  request.mutable_upload()->set_url("s3://bucket/run");
  Answer<v1::JoinRunResponse> joined;
  engine_->JoinRun(As(sessions_[0]), request, joined.reply());
  RunQueued();
  EXPECT_TRUE(joined.status().ok()) << joined.status();
}

}  // namespace
}  // namespace ckptd
