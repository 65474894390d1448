// The engine's promises, on a root in memory and a clock that the test moves.
#include "daemon/engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "storage/base/errors.h"
#include "tests/testing/engine_fixture.h"

namespace ckptd {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

TEST_F(EngineTest, CommitsSaveOfTwoRanksWithoutFurtherCalls) {
  auto sessions = Launch("a", 2);
  ios_[1]->hold_writes = true;
  SaveAll(sessions, "step_1", 1);
  for (SessionId session : sessions) engine_->SessionClosed(session, "killed");  // Sealed means finished.
  EXPECT_THAT(Tags(), ElementsAre());
  ios_[1]->ReleaseHeld();
  RunQueued();
  EXPECT_THAT(Tags(), ElementsAre("step_1"));
  ASSERT_EQ(observer_.ended.size(), 1u);
  EXPECT_EQ(observer_.ended[0].checkpoint.level(), v1::COMMITTED);
  EXPECT_EQ(pool_->usage().used_bytes, 0);
}

TEST_F(EngineTest, WritesThePartOfEachRankThatAsksForItOverTheNewestCheckpoint) {
  auto sessions = Launch("a", 2);
  const auto save = [&](const std::string& tag, int64_t step) {
    auto shares = BeginOf(0, tag, step, 100), writes = BeginOf(1, tag, step, 100);
    shares.set_share_unchanged(true);
    auto first = Begin(sessions[0], shares), second = Begin(sessions[1], writes);
    RunQueued([&] { return first.has() && second.has(); });
    Seal(sessions[0], shares);
    Seal(sessions[1], writes);
    RunQueued();
  };
  save("step_1", 1);  // There is none yet.
  save("step_2", 2);
  EXPECT_THAT(Tags(), ElementsAre("step_2", "step_1"));
  EXPECT_THAT(ios_[1]->write_bases, UnorderedElementsAre(0, 0, 0, 1));
}
TEST_F(EngineTest, WritesAllFilesIfTheNewestCheckpointCannotBeOpened) {
  auto sessions = Launch("a", 1);
  SaveAll(sessions, "step_1", 1);
  ios_[1]->errors["OpenCheckpoint"] = absl::DataLossError("the manifest is damaged");
  auto request = BeginOf(0, "step_2", 2, 100);
  request.set_share_unchanged(true);
  auto begun = Begin(sessions[0], request);
  RunQueued([&] { return begun.has(); });
  Seal(sessions[0], request);
  RunQueued();
  EXPECT_THAT(Tags(), ElementsAre("step_2", "step_1"));
  EXPECT_THAT(ios_[1]->write_bases, ElementsAre(0, 0));
}
TEST_F(EngineTest, TrainerThatEndsBeforeSealFailsSaveForAllAndReturnsItsMemory) {
  auto sessions = Launch("a", 2);
  auto first = BeginOf(0, "step_1", 1, 100), second = BeginOf(1, "step_1", 1, 100);
  auto begun_first = Begin(sessions[0], first), begun_second = Begin(sessions[1], second);
  RunQueued([&] { return begun_first.has() && begun_second.has(); });
  Seal(sessions[0], first);
  auto wait = Wait(sessions[0], first.key());
  engine_->SessionClosed(sessions[1], "killed");
  RunQueued();
  ASSERT_TRUE(wait.has());
  EXPECT_EQ(wait.get().checkpoint().level(), v1::FAILED);
  EXPECT_EQ(wait.get().checkpoint().error().reason(), "SESSION_LOST");
  EXPECT_THAT(wait.get().checkpoint().error().ranks(), ElementsAre(1));
  EXPECT_THAT(Tags(), ElementsAre());
  EXPECT_EQ(pool_->usage().used_bytes, 0);
}

TEST_F(EngineTest, NamesRankThatNeverSealsAtDeadlineAndKeepsOlderLatest) {
  auto sessions = Launch("a", 2);
  SaveAll(sessions, "step_1", 1);
  auto first = BeginOf(0, "step_2", 2, 100), second = BeginOf(1, "step_2", 2, 100);
  auto a = Begin(sessions[0], first), b = Begin(sessions[1], second);
  RunQueued([&] { return a.has() && b.has(); });
  Seal(sessions[0], first);
  auto wait = Wait(sessions[0], first.key());
  AdvanceClock(std::chrono::seconds(601));
  ASSERT_TRUE(wait.has());
  EXPECT_EQ(wait.get().checkpoint().error().reason(), "RANKS_MISSING");
  EXPECT_THAT(wait.get().checkpoint().error().ranks(), ElementsAre(1));
  EXPECT_THAT(Tags(), ElementsAre("step_1"));
}

TEST_F(EngineTest, FirstSaveWaitsForSizesOfAllRanksAndNamesMissingRanks) {
  auto sessions = Launch("a", 3);
  auto begun = Begin(sessions[1], BeginOf(1, "step_1", 1, 100));
  EXPECT_FALSE(begun.has());
  AdvanceClock(std::chrono::seconds(31));
  EXPECT_EQ(begun.reason(), "RANKS_MISSING");
  EXPECT_EQ(DetailsOf(begun.status())["ranks"], "0,2");
}

TEST_F(EngineTest, RanksWithDifferentTagsHearOfEachOther) {
  auto sessions = Launch("a", 3);
  auto one = Begin(sessions[0], BeginOf(0, "step_1", 1, 100));
  auto third = Begin(sessions[2], BeginOf(2, "step_1", 1, 100));
  auto two = Begin(sessions[1], BeginOf(1, "step-1", 1, 100));
  AdvanceClock(std::chrono::seconds(9));
  EXPECT_THAT(observer_.warnings, IsEmpty());
  AdvanceClock(std::chrono::seconds(2));
  EXPECT_THAT(observer_.warnings,
              UnorderedElementsAre(
                  AllOf(HasSubstr("the save of step_1 in the root "), HasSubstr("rank 1 saves step-1")),
                  AllOf(HasSubstr("the save of step-1 in the root "),
                        HasSubstr("rank 0 saves step_1, rank 2 saves step_1"))));
  AdvanceClock(std::chrono::seconds(20));
  EXPECT_EQ(one.reason(), "RANKS_MISSING");
  EXPECT_THAT(std::string(one.status().message()),
              HasSubstr("in its place rank 1 saves step-1: give all ranks the same root and tag"));
  EXPECT_THAT(std::string(two.status().message()),
              HasSubstr("in its place rank 0 saves step_1, rank 2 saves step_1"));
  EXPECT_THAT(observer_.warnings, SizeIs(2)) << "once for each save";
}

// A rank that is late with the save before is not one with another tag.
TEST_F(EngineTest, RankThatStillCopiesTheSaveBeforeSavesNothingElse) {
  auto sessions = Launch("a", 2);
  SaveAll(sessions, "step_1", 1);
  auto two = Begin(sessions[0], BeginOf(0, "step_2", 2, 100));
  auto late = Begin(sessions[1], BeginOf(1, "step_2", 2, 100));
  auto three = Begin(sessions[0], BeginOf(0, "step_3", 3, 100));
  RunQueued([&] { return two.has() && late.has() && three.has(); });
  AdvanceClock(std::chrono::seconds(20));
  EXPECT_THAT(observer_.warnings, IsEmpty());
}

TEST_F(EngineTest, AdmitsLaterSaveForAllRanksBySizesOfLastSave) {
  auto sessions = Launch("a", 2);
  SaveAll(sessions, "step_1", 1);
  auto begun = Begin(sessions[0], BeginOf(0, "step_2", 2, 100));
  RunQueued([&] { return begun.has(); });
  EXPECT_TRUE(begun.status().ok()) << begun.status();
}

TEST_F(EngineTest, NewAttemptFencesOlderOneFromItsFirstBeginOrResume) {
  auto old_ranks = Launch("a", 1);
  SaveAll(old_ranks, "step_1", 1);
  auto half = BeginOf(0, "step_2", 2, 100);
  auto begun = Begin(old_ranks[0], half);
  RunQueued([&] { return begun.has(); });

  auto new_ranks = Launch("b", 1);
  auto still = Begin(old_ranks[0], half);  // Joining alone fences nobody.
  EXPECT_TRUE(still.status().ok()) << still.status();
  auto resumed = Resume(new_ranks[0], 0);
  ASSERT_TRUE(resumed.status().ok()) << resumed.status();
  EXPECT_EQ(resumed.get().checkpoint().tag(), "step_1");

  EXPECT_EQ(Seal(old_ranks[0], half).reason(), "FENCED");
  EXPECT_EQ(Begin(old_ranks[0], BeginOf(0, "step_3", 3, 100)).reason(), "FENCED");
  EXPECT_EQ(Resume(old_ranks[0], 0).reason(), "FENCED");
  SaveAll(new_ranks, "step_2", 2);
  EXPECT_THAT(Tags(), ElementsAre("step_2", "step_1"));
}

TEST_F(EngineTest, PublishesSealedSaveOfFencedAttemptAndResumeWaitsForIt) {
  auto old_ranks = Launch("a", 1);
  ios_[1]->hold_writes = true;
  SaveAll(old_ranks, "step_1", 1);
  auto new_ranks = Launch("b", 1);
  auto resumed = Resume(new_ranks[0], 0);
  EXPECT_FALSE(resumed.has());
  ios_[1]->ReleaseHeld();
  RunQueued();
  ASSERT_TRUE(resumed.has());
  EXPECT_EQ(resumed.get().checkpoint().tag(), "step_1");
}

TEST_F(EngineTest, DecidesResumeOncePerAttempt) {
  auto first = Launch("a", 2);
  SaveAll(first, "step_1", 1);
  auto second = Launch("b", 2);
  auto rank0 = Resume(second[0], 0);
  ASSERT_TRUE(rank0.status().ok()) << rank0.status();
  // A checkpoint that is committed between the two calls does not split the ranks.
  SaveAll(second, "step_2", 2);
  auto rank1 = Resume(second[1], 1);
  ASSERT_TRUE(rank1.status().ok()) << rank1.status();
  EXPECT_EQ(rank0.get().checkpoint().tag(), "step_1");
  EXPECT_EQ(rank1.get().checkpoint().tag(), "step_1");
}

TEST_F(EngineTest, ResumeDecisionSurvivesRestartBetweenTwoRanks) {
  auto first = Launch("a", 2);
  SaveAll(first, "step_1", 1);
  auto second = Launch("b", 2);
  ASSERT_TRUE(Resume(second[0], 0).status().ok());
  Start(16);  // The same disk.
  auto again = Launch("b", 2);
  EXPECT_EQ(Resume(again[1], 1).get().checkpoint().tag(), "step_1");
}

TEST_F(EngineTest, EmptyRootHasNothingToResumeFrom) {
  auto sessions = Launch("a", 1);
  auto resumed = Resume(sessions[0], 0);
  ASSERT_TRUE(resumed.status().ok()) << resumed.status();
  EXPECT_FALSE(resumed.get().has_checkpoint());
}

TEST_F(EngineTest, OrdersCheckpointsByBeginAndNotByStep) {
  auto sessions = Launch("a", 1);
  SaveAll(sessions, "step_1000", 1000, 2);
  SaveAll(sessions, "step_600", 600, 2);
  SaveAll(sessions, "step_700", 700, 2);
  RunQueued();
  EXPECT_THAT(Tags(), ElementsAre("step_700", "step_600"));
  EXPECT_THAT(disks_[1]->evicted, ElementsAre("step_1000"));
}

// The times tell which one is the newest where the root is not at hand, as in a bucket.
TEST_F(EngineTest, TimesOfBeginFollowTheSequencesWhenTheDateIsPutBack) {
  auto sessions = Launch("a", 1);
  SaveAll(sessions, "first", 1);
  clock_.unix_us -= 5'000'000'000;
  SaveAll(sessions, "second", 2);
  SaveAll(sessions, "third", 3);
  RunQueued();
  std::vector<int64_t> begun;
  for (const auto& [sequence, checkpoint] : disks_[1]->committed)
    begun.push_back(checkpoint.summary.create_time_us());
  ASSERT_EQ(begun.size(), 3u);
  EXPECT_THAT(begun, ElementsAre(begun[0], begun[0] + 1, begun[0] + 2));
}

TEST_F(EngineTest, RetentionKeepsPinnedAndLeasedCheckpoints) {
  auto sessions = Launch("a", 1);
  SaveAll(sessions, "a", 1, 3);
  SaveAll(sessions, "b", 2, 3);
  Answer<v1::Checkpoint> pinned;
  engine_->SetPinned(As(sessions[0]), run_ + "/checkpoints/a", true, pinned.reply());
  v1::OpenCheckpointRequest open;
  open.set_name(run_ + "/checkpoints/b");
  Answer<v1::OpenCheckpointResponse> opened;
  engine_->OpenCheckpoint(As(sessions[0]), open, opened.reply());
  RunQueued();
  ASSERT_TRUE(opened.status().ok()) << opened.status();
  SaveAll(sessions, "c", 3, 1);
  RunQueued();
  EXPECT_THAT(Tags(), ElementsAre("c", "b", "a"));
  v1::CloseCheckpointRequest close;
  close.set_lease(opened.get().lease());
  Answer<v1::CloseCheckpointResponse> closed;
  engine_->CloseCheckpoint(As(sessions[0]), close, closed.reply());
  RunQueued();
  EXPECT_THAT(Tags(), ElementsAre("c", "a"));
}

TEST_F(EngineTest, ResumedCheckpointStaysUntilAttemptHasCommitted) {
  auto first = Launch("a", 1);
  SaveAll(first, "one", 1, 1);
  auto second = Launch("b", 1);
  ASSERT_TRUE(Resume(second[0], 0).status().ok());
  EXPECT_THAT(Tags(), ElementsAre("one"));
  SaveAll(second, "two", 2, 1);
  RunQueued();
  v1::Status status = engine_->GetStatus(Caller{0, 0, true});
  EXPECT_EQ(status.runs(0).latest().tag(), "two");
}

TEST_F(EngineTest, TwoRanksThatClaimOneFileFailSaveOnBoth) {
  auto sessions = Launch("a", 2);
  auto a = Begin(sessions[0], BeginOf(0, "step_1", 1, 100, "model.pt"));
  auto b = Begin(sessions[1], BeginOf(1, "step_1", 1, 100, "model.pt"));
  RunQueued([&] { return a.has() && b.has(); });
  EXPECT_EQ(a.reason(), "FILE_CONFLICT");
  EXPECT_EQ(b.reason(), "FILE_CONFLICT");
  EXPECT_EQ(DetailsOf(b.status())["ranks"], "0,1");
}

TEST_F(EngineTest, PathBelowFileOfOtherRankIsConflict) {
  auto sessions = Launch("a", 2);
  auto a = Begin(sessions[0], BeginOf(0, "step_1", 1, 100, "model/a.pt"));
  auto b = Begin(sessions[1], BeginOf(1, "step_1", 1, 100, "model"));
  RunQueued([&] { return a.has() && b.has(); });
  EXPECT_EQ(b.reason(), "FILE_CONFLICT");
}

TEST_F(EngineTest, DifferentStepForSameSaveIsConflictThatNamesBoth) {
  auto sessions = Launch("a", 2);
  Begin(sessions[0], BeginOf(0, "t", 7, 100));
  auto other = Begin(sessions[1], BeginOf(1, "t", 8, 100));
  EXPECT_EQ(other.reason(), "SAVE_CONFLICT");
  EXPECT_THAT(std::string(other.status().message()), HasSubstr("step 8"));
  EXPECT_THAT(std::string(other.status().message()), HasSubstr("step 7"));
}

TEST_F(EngineTest, RepeatedRequestsTakeEffectOnce) {
  auto sessions = Launch("a", 1);
  auto request = BeginOf(0, "step_1", 1, 100);
  auto a = Begin(sessions[0], request), b = Begin(sessions[0], request);
  RunQueued([&] { return a.has() && b.has(); });
  EXPECT_EQ(a.get().sequence(), b.get().sequence());
  EXPECT_EQ(a.get().segments(0).id(), b.get().segments(0).id());
  ios_[1]->hold_writes = true;
  EXPECT_TRUE(Seal(sessions[0], request).status().ok());
  EXPECT_TRUE(Seal(sessions[0], request).status().ok());
  ios_[1]->ReleaseHeld();
  RunQueued();
  EXPECT_TRUE(Seal(sessions[0], request).status().ok());  // Its answer was lost; meanwhile it is committed.
  EXPECT_THAT(Tags(), ElementsAre("step_1"));
}

TEST_F(EngineTest, SkipIsSeenByEveryRank) {
  Start(4);
  auto sessions = Launch("a", 2);
  ios_[1]->hold_writes = true;
  auto one = BeginOf(0, "one", 1, 2 * kSegment), two = BeginOf(1, "one", 1, 2 * kSegment);
  auto a = Begin(sessions[0], one), b = Begin(sessions[1], two);
  RunQueued([&] { return a.has() && b.has(); });
  Seal(sessions[0], one);
  Seal(sessions[1], two);
  auto skip0 = BeginOf(0, "two", 2, kSegment), skip1 = BeginOf(1, "two", 2, kSegment);
  skip0.set_busy(v1::SKIP);
  skip1.set_busy(v1::SKIP);
  auto c = Begin(sessions[0], skip0), d = Begin(sessions[1], skip1);
  ASSERT_TRUE(c.status().ok()) << c.status();
  ASSERT_TRUE(d.status().ok()) << d.status();
  EXPECT_EQ(c.get().level(), v1::SKIPPED);
  EXPECT_EQ(d.get().level(), v1::SKIPPED);
  EXPECT_EQ(Wait(sessions[1], skip1.key()).get().checkpoint().level(), v1::SKIPPED);
  ios_[1]->ReleaseHeld();
  RunQueued();
  EXPECT_THAT(Tags(), ElementsAre("one"));
}

TEST_F(EngineTest, WaitIsAdmittedWhenOlderSaveReturnsItsMemory) {
  Start(4);
  auto sessions = Launch("a", 1);
  ios_[1]->hold_writes = true;
  auto one = BeginOf(0, "one", 1, 4 * kSegment), two = BeginOf(0, "two", 2, 4 * kSegment);
  auto a = Begin(sessions[0], one);
  RunQueued([&] { return a.has(); });
  Seal(sessions[0], one);
  auto b = Begin(sessions[0], two);
  EXPECT_FALSE(b.has());
  ios_[1]->ReleaseHeld();
  RunQueued([&] { return b.has(); });
  EXPECT_TRUE(b.status().ok()) << b.status();
}

TEST_F(EngineTest, WaitEndsAtDeadlineAndNamesWhatItWaitedFor) {
  Start(4);
  auto sessions = Launch("a", 1);
  ios_[1]->hold_writes = true;
  auto one = BeginOf(0, "one", 1, 4 * kSegment);
  auto a = Begin(sessions[0], one);
  RunQueued([&] { return a.has(); });
  Seal(sessions[0], one);
  auto b = Begin(sessions[0], BeginOf(0, "two", 2, 4 * kSegment));
  AdvanceClock(std::chrono::seconds(31));
  EXPECT_EQ(b.reason(), "ADMISSION_TIMEOUT");
  EXPECT_THAT(std::string(b.status().message()), HasSubstr("memory"));
}

TEST_F(EngineTest, SupersedeEndsOlderUnsealedSave) {
  Start(4);
  auto sessions = Launch("a", 1);
  auto one = BeginOf(0, "one", 1, 4 * kSegment), two = BeginOf(0, "two", 2, 4 * kSegment);
  two.set_busy(v1::SUPERSEDE);
  auto a = Begin(sessions[0], one);
  RunQueued([&] { return a.has(); });
  auto b = Begin(sessions[0], two);
  RunQueued([&] { return b.has(); });
  ASSERT_TRUE(b.status().ok()) << b.status();
  EXPECT_EQ(Wait(sessions[0], one.key()).get().checkpoint().level(), v1::SUPERSEDED);
}

TEST_F(EngineTest, RefusesSaveThatCanNeverFitAtOnce) {
  Start(4);
  auto sessions = Launch("a", 1);
  auto begun = Begin(sessions[0], BeginOf(0, "one", 1, 5 * kSegment));
  EXPECT_EQ(begun.reason(), "POOL_TOO_SMALL");
}

TEST_F(EngineTest, RefusesBeginAndWritesNothingWhenDiskIsTooSmall) {
  auto sessions = Launch("a", 1);
  disks_[1]->free_bytes = 5 << 20;
  auto begun = Begin(sessions[0], BeginOf(0, "one", 1, 10 << 20));
  EXPECT_EQ(begun.reason(), "NO_SPACE");
  EXPECT_TRUE(disks_[1]->bytes.empty());
}

TEST_F(EngineTest, SpaceInTrashCountsAsComing) {
  disks_[1] = std::make_shared<FakeDisk>();
  disks_[1]->free_bytes = 5 << 20;
  disks_[1]->trash_bytes = 20 << 20;
  auto sessions = Launch("a", 1);
  auto begun = Begin(sessions[0], BeginOf(0, "one", 1, 10 << 20));
  RunQueued([&] { return begun.has(); });
  EXPECT_TRUE(begun.status().ok()) << begun.status();
}

TEST_F(EngineTest, TwoHalfAdmittedSavesDoNotBlockEachOther) {
  Start(4);
  auto sessions = Launch("a", 2);
  // Each rank begins another save first. Together the two saves need more memory than the pool has.
  auto a0 = BeginOf(0, "a", 1, 2 * kSegment), b1 = BeginOf(1, "b", 2, 2 * kSegment);
  auto first = Begin(sessions[0], a0), second = Begin(sessions[1], b1);
  auto a1 = BeginOf(1, "a", 1, 2 * kSegment), b0 = BeginOf(0, "b", 2, 2 * kSegment);
  auto third = Begin(sessions[1], a1);
  RunQueued([&] { return first.has() && third.has(); });
  EXPECT_TRUE(first.status().ok()) << first.status();
  EXPECT_TRUE(third.status().ok()) << third.status();
  Seal(sessions[0], a0);
  Seal(sessions[1], a1);
  auto fourth = Begin(sessions[0], b0);
  RunQueued([&] { return second.has() && fourth.has(); });
  EXPECT_TRUE(second.status().ok()) << second.status();
  EXPECT_TRUE(fourth.status().ok()) << fourth.status();
}

TEST_F(EngineTest, RefusesPinnedAndForeignTagsAtBegin) {
  auto sessions = Launch("a", 1);
  SaveAll(sessions, "keep", 1);
  Answer<v1::Checkpoint> pinned;
  engine_->SetPinned(As(sessions[0]), run_ + "/checkpoints/keep", true, pinned.reply());
  RunQueued();
  auto request = BeginOf(0, "keep", 2, 100);
  request.mutable_key()->set_ordinal(2);
  EXPECT_EQ(Begin(sessions[0], request).reason(), "PINNED");
  disks_[1]->foreign.push_back("theirs");
  EXPECT_EQ(Begin(sessions[0], BeginOf(0, "theirs", 2, 100)).reason(), "TAG_FOREIGN");
}

TEST_F(EngineTest, WriteErrorFailsSaveWithItsReasonAndKeepsLatest) {
  auto sessions = Launch("a", 1);
  SaveAll(sessions, "good", 1);
  ios_[1]->write_error = ErrnoError(ENOSPC, "writing");
  SaveAll(sessions, "bad", 2);
  auto wait = Wait(sessions[0], Key(0, "bad"));
  ASSERT_TRUE(wait.has());
  EXPECT_EQ(wait.get().checkpoint().error().reason(), "NO_SPACE");
  EXPECT_THAT(Tags(), ElementsAre("good"));
}

TEST_F(EngineTest, FailedSyncAfterRenameIsIndeterminateUntilScan) {
  auto sessions = Launch("a", 1);
  ios_[1]->publish_result = {PublishOutcome::kIndeterminate, ErrnoError(EIO, "syncing the root")};
  SaveAll(sessions, "one", 1);
  auto wait = Wait(sessions[0], Key(0, "one"));
  EXPECT_EQ(wait.get().checkpoint().level(), v1::INDETERMINATE);
  ios_[1]->publish_result = {PublishOutcome::kCommitted, absl::OkStatus()};
  SaveAll(sessions, "two", 2);  // The scan has been: it takes saves again.
  EXPECT_THAT(Tags(), ElementsAre("two"));
}

TEST_F(EngineTest, SaveOfUnknownOutcomeThatAScanFindsIsCommittedInTheHistory) {
  auto sessions = Launch("a", 1);
  ios_[1]->publish_result = {PublishOutcome::kIndeterminate, ErrnoError(EIO, "syncing the root")};
  disks_[1]->unknown_is_published = true;
  SaveAll(sessions, "one", 1);
  EXPECT_EQ(Wait(sessions[0], Key(0, "one")).get().checkpoint().level(), v1::INDETERMINATE);
  EXPECT_THAT(Tags(), ElementsAre("one"));
  for (int daemons = 0; daemons < 2; ++daemons) {  // It is recorded once.
    const auto& outcomes = disks_[1]->run_record.outcomes();
    ASSERT_EQ(outcomes.size(), 2);
    EXPECT_EQ(outcomes[0].level(), v1::INDETERMINATE);
    EXPECT_EQ(outcomes[1].level(), v1::COMMITTED);
    EXPECT_EQ(outcomes[1].sequence(), outcomes[0].sequence());
    Start(16);
    Attach(Trainer("reader"));
  }
}

TEST_F(EngineTest, StagedPartLostWithDaemonIsReportedToEveryRank) {
  auto sessions = Launch("a", 2);
  auto first = BeginOf(0, "one", 1, 100), second = BeginOf(1, "one", 1, 100);
  auto a = Begin(sessions[0], first), b = Begin(sessions[1], second);
  RunQueued([&] { return a.has() && b.has(); });
  Seal(sessions[0], first);
  Start(16);
  SessionId rank0 = Trainer("a/0"), rank1 = Trainer("a/1");
  ASSERT_TRUE(Join(rank1, 1, 2, "a").status().ok());
  v1::SaveKey lost = first.key();
  ASSERT_TRUE(Join(rank0, 0, 2, "a", {lost}).status().ok());
  auto again = Begin(rank1, second);
  EXPECT_EQ(again.reason(), "STAGED_LOST");
  EXPECT_EQ(Wait(rank0, first.key()).get().checkpoint().error().reason(), "STAGED_LOST");
}

TEST_F(EngineTest, SaveLostWithDaemonIsFailedInHistoryWithoutAnyTrainer) {
  auto sessions = Launch("a", 1);
  SaveAll(sessions, "one", 1);
  disks_[1]->recovered = {{"two", 2, false, "no part of it is complete"},
                          {"one", 1, true, "complete"},
                          {"old", 3, false, "an older generation", /*replaced=*/true}};
  for (int daemons = 0; daemons < 2; ++daemons) {  // The second one reads the history, and adds nothing.
    Start(16);
    Attach(Trainer("reader"));
    EXPECT_THAT(Failures(), ElementsAre("two STAGED_LOST"));
    EXPECT_EQ(disks_[1]->run_record.outcomes_size(), 2);
  }
}

TEST_F(EngineTest, LostSaveThatItsTrainersOfferAgainIsNoFailure) {
  auto sessions = Launch("a", 1);
  SaveAll(sessions, "one", 1);
  disks_[1]->recovered = {{"two", 2, false, "no part of it is complete"}};
  Start(16);
  SessionId rank0 = Trainer("a/0");
  ASSERT_TRUE(Join(rank0, 0, 1, "a").status().ok());
  ASSERT_THAT(Failures(), ElementsAre("two STAGED_LOST"));
  SaveAll({rank0}, "two", 2);
  EXPECT_THAT(Failures(), ElementsAre());
  disks_[1]->recovered.clear();
  Start(16);
  Attach(Trainer("reader"));
  EXPECT_THAT(Failures(), ElementsAre());
}

TEST_F(EngineTest, LostSaveThatARankReportsIsOneFailure) {
  auto sessions = Launch("a", 1);
  SaveAll(sessions, "one", 1);
  disks_[1]->recovered = {{"two", 2, false, "no part of it is complete"}};
  Start(16);
  ASSERT_TRUE(Join(Trainer("a/0"), 0, 1, "a", {Key(0, "two")}).status().ok());
  EXPECT_THAT(Failures(), ElementsAre("two STAGED_LOST"));
}

// ---- saves to which only some ranks contribute

TEST_F(EngineTest, SaveOfOneRankIsCommittedWithoutTheOthers) {
  auto sessions = Launch("a", 3);
  auto request = BeginOf(1, "log", 1, 100);
  request.add_ranks(1);
  auto begun = Begin(sessions[1], request);
  RunQueued([&] { return begun.has(); });
  ASSERT_TRUE(begun.status().ok()) << begun.status();
  EXPECT_EQ(Seal(sessions[1], request).get().level(), v1::SEALED);
  EXPECT_EQ(Wait(sessions[1], Key(1, "log")).get().checkpoint().level(), v1::COMMITTED);
  EXPECT_EQ(disks_[1]->committed.begin()->second.summary.world_size(), 3);
}

TEST_F(EngineTest, SaveOfSomeRanksRefusesTheOthersAndOtherRanks) {
  auto sessions = Launch("a", 3);
  auto request = BeginOf(0, "log", 1, 100);
  request.add_ranks(0);
  request.add_ranks(1);
  auto begun = Begin(sessions[0], request);
  auto differs = BeginOf(1, "log", 1, 100);
  EXPECT_EQ(Begin(sessions[1], differs).reason(), "SAVE_CONFLICT");
  auto absent = BeginOf(2, "log", 1, 100);
  absent.add_ranks(0);
  EXPECT_EQ(Begin(sessions[2], absent).reason(), "INVALID_ARGUMENT") << "it does not name itself";
  auto outside = BeginOf(2, "log", 1, 100);
  for (int rank : {2, 3}) outside.add_ranks(rank);
  EXPECT_EQ(Begin(sessions[2], outside).reason(), "INVALID_ARGUMENT");
}

TEST_F(EngineTest, SaveOfOneRankDoesNotChangeWhatIsExpectedOfTheOthers) {
  auto sessions = Launch("a", 2);
  SaveAll(sessions, "all", 1);
  auto alone = BeginOf(0, "log", 2, 100);
  alone.add_ranks(0);
  auto begun = Begin(sessions[0], alone);
  RunQueued([&] { return begun.has(); });
  Seal(sessions[0], alone);
  SaveAll(sessions, "all2", 3);
  EXPECT_THAT(Tags(), ElementsAre("all2", "log", "all"));
}

TEST_F(EngineTest, RanksThatDoNotBeginAreNamedWithWhatToDo) {
  auto sessions = Launch("a", 2);
  auto begun = Begin(sessions[0], BeginOf(0, "one", 1, 100));
  AdvanceClock(std::chrono::seconds(31));
  EXPECT_EQ(begun.reason(), "RANKS_MISSING");
  EXPECT_THAT(std::string(begun.status().message()), HasSubstr("unless the save names its ranks"));
}

// ---- sessions and memory use

TEST_F(EngineTest, SessionsNameTheirRanksAndMemory) {
  auto sessions = Launch("a", 2);
  Trainer("other user", 1001);
  SaveAll(sessions, "one", 1);
  const v1::ListSessionsResponse own = engine_->ListSessions(Caller{0, 1000, false});
  ASSERT_EQ(own.sessions_size(), 2);
  EXPECT_EQ(own.sessions(1).memberships(0).rank(), 1);
  EXPECT_EQ(own.sessions(1).memberships(0).path(), "/root1");
  EXPECT_EQ(own.sessions(1).pool_bytes(), kSegment);
  EXPECT_EQ(engine_->ListSessions(Caller{0, 0, true}).sessions_size(), 3);
}

TEST_F(EngineTest, RunNamesTheMemoryOfItsSavesInFlight) {
  auto sessions = Launch("a", 1);
  auto begun = Begin(sessions[0], BeginOf(0, "one", 1, 3 * kSegment));
  RunQueued([&] { return begun.has(); });
  EXPECT_EQ(engine_->GetStatus(Caller{0, 0, true}).runs(0).pool_bytes(), 3 * kSegment);
}

TEST_F(EngineTest, SaveThatWaitsForMemoryNamesWhoHoldsIt) {
  auto sessions = Launch("a", 1);
  auto first = Begin(sessions[0], BeginOf(0, "one", 1, 12 * kSegment));
  RunQueued([&] { return first.has(); });
  auto second = Begin(sessions[0], BeginOf(0, "two", 2, 12 * kSegment));
  AdvanceClock(std::chrono::seconds(31));
  ASSERT_EQ(second.reason(), "ADMISSION_TIMEOUT");
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("saves in flight hold it: /root1 24 MiB"));
}

// ---- ListCheckpoints during retention

TEST_F(EngineTest, ListHasNoCheckpointThatRetentionIsAboutToRemove) {
  auto sessions = Launch("a", 1);
  SaveAll(sessions, "one", 1, 1);
  ios_[1]->held.insert("SaveRunRecord");
  SaveAll(sessions, "two", 2, 1);
  ASSERT_EQ(Wait(sessions[0], Key(0, "two")).get().checkpoint().level(), v1::COMMITTED);
  EXPECT_THAT(Tags(), ElementsAre("two")) << "the history is not on disk yet";
  ios_[1]->ReleaseHeld();
  ios_[1]->held.insert("Evict");
  RunQueued();
  EXPECT_THAT(disks_[1]->evicted, ElementsAre());
  EXPECT_THAT(Tags(), ElementsAre("two")) << "the eviction is under way";
}

TEST_F(EngineTest, CommittedSaveIsKnownToNextDaemon) {
  auto sessions = Launch("a", 1);
  SaveAll(sessions, "one", 1);
  Start(16);
  SessionId rank0 = Trainer("a/0");
  ASSERT_TRUE(Join(rank0, 0, 1, "a").status().ok());
  EXPECT_EQ(Wait(rank0, Key(0, "one")).get().checkpoint().level(), v1::COMMITTED);
}

TEST_F(EngineTest, CommittedSaveMissingFromHistoryIsKnownAfterItWasReplaced) {
  auto sessions = Launch("a", 1);
  SaveAll(sessions, "one", 1);
  disks_[1]->run_record.clear_outcomes();  // Killed before it was written down.
  Start(16);
  SessionId rank0 = Trainer("a/0");
  ASSERT_TRUE(Join(rank0, 0, 1, "a").status().ok());
  auto again = BeginOf(0, "one", 2, 100);
  again.mutable_key()->set_ordinal(2);
  auto begun = Begin(rank0, again);
  RunQueued([&] { return begun.has(); });
  ASSERT_TRUE(Seal(rank0, again).status().ok());
  ASSERT_EQ(Wait(rank0, again.key()).get().checkpoint().level(), v1::COMMITTED);
  auto late = Wait(rank0, Key(0, "one", 1));
  ASSERT_TRUE(late.status().ok()) << late.status();
  EXPECT_EQ(late.get().checkpoint().level(), v1::COMMITTED);
}

// What an attempt had sealed before it was over is published all the same.
TEST_F(EngineTest, SaveOfEarlierAttemptThatRecoveryHasPublishedIsKnownAfterItWasReplaced) {
  auto sessions = Launch("a", 1);
  SaveAll(sessions, "one", 1);
  ASSERT_TRUE(Resume(Launch("b", 1)[0], 0).status().ok());
  disks_[1]->run_record.clear_outcomes();
  disks_[1]->recovered = {{"one", 1, /*published=*/true, "complete"}};
  Start(16);
  auto later = Launch("b", 1);
  SaveAll(later, "one", 2);
  SessionId late = Trainer("a/0");
  ASSERT_TRUE(Join(late, 0, 1, "a", {Key(0, "one")}).status().ok());
  EXPECT_EQ(Wait(late, Key(0, "one")).get().checkpoint().level(), v1::COMMITTED);
}

TEST_F(EngineTest, SaveOfEarlierAttemptMissingFromHistoryIsKnownAfterItWasReplacedButNoneThatItHasDropped) {
  auto sessions = Launch("a", 1);
  for (const char* tag : {"one", "two", "three"}) SaveAll(sessions, tag, 1);
  ASSERT_TRUE(Resume(Launch("b", 1)[0], 0).status().ok());
  auto& outcomes = *disks_[1]->run_record.mutable_outcomes();
  ASSERT_EQ(outcomes.size(), 3);
  outcomes.RemoveLast();          // Killed before it was written down.
  outcomes.DeleteSubrange(0, 1);  // There are too many.
  Start(16);
  Launch("b", 1);
  ASSERT_EQ(outcomes.size(), 2);
  EXPECT_EQ(outcomes[0].tag(), "two");
  EXPECT_EQ(outcomes[1].tag(), "three");
}

TEST_F(EngineTest, AttemptOfACheckpointThatTheRecordDoesNotKnowIsNotGivenAgain) {
  SaveAll(Launch("a", 1), "one", 1);
  disks_[1]->run_record.Clear();  // Somebody has removed .ckptd while no daemon ran.
  Start(16);
  SaveAll(Launch("b", 1), "one", 1);
  EXPECT_THAT(Tags(), ElementsAre("one"));
  EXPECT_EQ(disks_[1]->committed.rbegin()->first, 2);
  EXPECT_EQ(disks_[1]->committed.rbegin()->second.summary.attempt(), 2);
}

TEST_F(EngineTest, AttemptThatTheHistoryNamesIsNotGivenAgain) {
  SaveAll(Launch("a", 1), "one", 1);
  disks_[1]->run_record.clear_launches();  // They were of a checkpoint that was moved in, and is gone again.
  disks_[1]->committed.clear();
  Start(16);
  SaveAll(Launch("b", 1), "one", 1);
  EXPECT_THAT(Tags(), ElementsAre("one"));
}

TEST_F(EngineTest, AttemptOfACheckpointThatWasMovedInIsNotGivenAgain) {
  auto sessions = Launch("a", 1);
  SaveAll(sessions, "one", 1);
  CommittedCheckpoint moved = disks_[1]->committed.begin()->second;
  moved.summary.set_tag("moved");
  moved.summary.set_sequence(100);
  moved.summary.set_attempt(2);
  disks_[1]->committed[100] = moved;
  ios_[1]->publish_result.root_has_new_checkpoints = true;
  SaveAll(sessions, "two", 2);  // Its commit finds the checkpoint.
  ios_[1]->publish_result.root_has_new_checkpoints = false;
  EXPECT_THAT(Tags(), ElementsAre("moved", "two", "one"));
  SaveAll(sessions, "three", 3);  // The launch that runs goes on.
  auto later = Launch("b", 1);
  SaveAll(later, "moved", 4);
  EXPECT_THAT(Tags(), ElementsAre("moved", "three", "two", "one"));
  EXPECT_EQ(disks_[1]->committed.rbegin()->second.summary.attempt(), 3);
}

TEST_F(EngineTest, NewProcessOfEndedRankStartsAttemptThatOthersJoin) {
  auto sessions = Launch("a", 2);
  for (SessionId session : sessions) engine_->SessionClosed(session, "killed");
  SessionId rank0 = Trainer("new/0"), rank1 = Trainer("new/1");
  EXPECT_EQ(Join(rank0, 0, 2, "a").get().attempt(), 2);
  EXPECT_EQ(Join(rank1, 1, 2, "a").get().attempt(), 2);
  EXPECT_EQ(Join(Trainer("third"), 1, 2, "a").reason(), "RANK_TAKEN");
}

TEST_F(EngineTest, WorldSizeIsFixedWithinAttemptOnly) {
  auto sessions = Launch("a", 2);
  SaveAll(sessions, "one", 1);
  EXPECT_EQ(Join(Trainer("x"), 1, 3, "a").reason(), "RANK_TAKEN");
  auto more = Launch("b", 3);
  EXPECT_EQ(Resume(more[2], 2).get().checkpoint().tag(), "one");
  SaveAll(more, "two", 2);
  EXPECT_THAT(Tags(), ElementsAre("two", "one"));
}

TEST_F(EngineTest, RunBelongsToUidThatCreatedIt) {
  Launch("a", 1);
  SessionId stranger = Trainer("stranger", 2000);
  EXPECT_THAT(Attach(stranger, 1, 2000), HasSubstr("belongs to uid 1000"));
  v1::ListCheckpointsRequest request;
  request.set_parent(run_);
  Answer<v1::ListCheckpointsResponse> answer;
  engine_->ListCheckpoints(As(stranger, 2000), request, answer.reply());
  EXPECT_EQ(answer.reason(), "WRONG_UID");
}

TEST_F(EngineTest, WaitsForRootLockOfEndingDaemon) {
  disks_[1] = std::make_shared<FakeDisk>();
  disks_[1]->locked = true;
  Answer<std::string> first = AttachLater(Trainer("a")), second = AttachLater(Trainer("b"));
  clock_.now += std::chrono::seconds(1);
  engine_->Tick();
  RunQueued();
  EXPECT_FALSE(first.has());
  disks_[1]->locked = false;
  clock_.now += std::chrono::seconds(1);
  engine_->Tick();
  RunQueued();
  ASSERT_TRUE(first.has() && second.has());
  EXPECT_EQ(first.status(), absl::OkStatus());
  EXPECT_EQ(second.status(), absl::OkStatus());
}

TEST_F(EngineTest, RefusesRootLockedByOtherDaemonAfterTimeout) {
  disks_[1] = std::make_shared<FakeDisk>();
  disks_[1]->locked = true;
  Answer<std::string> refused = AttachLater(Trainer("a"));
  EXPECT_FALSE(refused.has());
  clock_.now += std::chrono::seconds(6);
  engine_->Tick();
  RunQueued();
  EXPECT_EQ(refused.reason(), "ROOT_LOCKED");
  disks_[1]->locked = false;  // The next one tries anew.
  EXPECT_EQ(AttachLater(Trainer("a")).status(), absl::OkStatus());
}

TEST_F(EngineTest, RefusesRetentionOfZeroOrLess) {
  auto sessions = Launch("a", 1);
  for (int keep : {0, -2}) {
    auto request = BeginOf(0, "one", 1, 100);
    request.set_num_kept_ckpts(keep);
    EXPECT_EQ(Begin(sessions[0], request).reason(), "INVALID_ARGUMENT") << keep;
  }
}

TEST_F(EngineTest, RefusesRetentionPolicyOutOfRange) {
  auto sessions = Launch("a", 1);
  const std::function<void(v1::RetentionPolicy&)> wrong[] = {
      [](auto& policy) { policy.set_last(0); },
      [](auto& policy) { policy.set_best(-1); },
      [](auto& policy) { policy.set_best(2); },
      [](auto& policy) { policy.set_metric("loss"); },
      [](auto& policy) {
        policy.set_best(1);
        policy.set_metric(std::string(65, 'm'));
      },
      [](auto& policy) { policy.set_every_steps(-1); },
      [](auto& policy) { policy.mutable_newer_than()->set_seconds(0); },
      [](auto& policy) { policy.set_order(static_cast<v1::MetricOrder>(7)); },
  };
  for (const auto& change : wrong) {
    auto request = BeginOf(0, "one", 1, 100);
    change(*request.mutable_retention());
    EXPECT_EQ(Begin(sessions[0], request).reason(), "INVALID_ARGUMENT")
        << request.retention().ShortDebugString();
  }
  auto both = BeginOf(0, "one", 1, 100);
  both.set_num_kept_ckpts(1);
  both.mutable_retention()->set_last(1);
  EXPECT_EQ(Begin(sessions[0], both).reason(), "INVALID_ARGUMENT");
}

TEST_F(EngineTest, RefusesWorldThatSpansNodes) {
  SessionId session = Trainer("a");
  v1::JoinRunRequest request;
  request.set_root(Attach(session));
  request.set_world_size(16);
  request.set_local_world_size(8);
  request.set_launch_id("a");
  Answer<v1::JoinRunResponse> answer;
  engine_->JoinRun(As(session), request, answer.reply());
  EXPECT_EQ(answer.reason(), "MULTI_NODE_UNSUPPORTED");
}

TEST_F(EngineTest, DrainRefusesNewSavesAndWaitsForSealedOnes) {
  auto sessions = Launch("a", 1);
  ios_[1]->hold_writes = true;
  SaveAll(sessions, "one", 1);
  bool drained = false;
  engine_->Drain([&] { drained = true; });
  EXPECT_EQ(Begin(sessions[0], BeginOf(0, "two", 2, 100)).reason(), "DRAINING");
  EXPECT_FALSE(drained);
  ios_[1]->ReleaseHeld();
  RunQueued();
  EXPECT_TRUE(drained);
}

TEST_F(EngineTest, DrainWaitsForRetention) {
  auto sessions = Launch("a", 1);
  SaveAll(sessions, "one", 1, 1);
  ios_[1]->held.insert("Evict");
  SaveAll(sessions, "two", 2, 1);
  bool drained = false;
  engine_->Drain([&] { drained = true; });
  EXPECT_FALSE(drained) << "one checkpoint too many would stay, perhaps for ever";
  ios_[1]->ReleaseHeld();
  ios_[1]->held.insert("EmptyTrash");
  RunQueued();
  EXPECT_FALSE(drained) << "its room would";
  ios_[1]->ReleaseHeld();
  RunQueued();
  EXPECT_TRUE(drained);
}

TEST_F(EngineTest, DrainDoesNotWaitForTrashThatCannotBeRemoved) {
  auto sessions = Launch("a", 1);
  SaveAll(sessions, "one", 1, 1);
  ios_[1]->errors["Evict"] = ErrnoError(EIO, "renaming");
  SaveAll(sessions, "two", 2, 1);
  bool drained = false;
  engine_->Drain([&] { drained = true; });
  RunQueued();
  EXPECT_TRUE(drained);
}

TEST_F(EngineTest, UnresponsiveRootIsDegraded) {
  Launch("a", 1);
  ios_[1]->SetPendingSince(clock_.now);
  AdvanceClock(std::chrono::seconds(11));
  EXPECT_TRUE(engine_->GetStatus(Caller{0, 0, true}).runs(0).degraded());
  ios_[1]->SetPendingSince(std::nullopt);
  AdvanceClock(std::chrono::seconds(1));
  EXPECT_FALSE(engine_->GetStatus(Caller{0, 0, true}).runs(0).degraded());
}

TEST_F(EngineTest, GrowingPartGetsRoomFileByFile) {
  auto sessions = Launch("a", 1);
  v1::BeginRequest begin;
  *begin.mutable_key() = Key(0, "one");
  begin.set_growing(true);
  auto begun = Begin(sessions[0], begin);
  ASSERT_TRUE(begun.status().ok()) << begun.status();
  EXPECT_EQ(begun.get().segments_size(), 0);
  v1::SealRequest seal;
  *seal.mutable_key() = begin.key();
  for (int i = 0; i < 3; ++i) {
    v1::ExtendRequest extend;
    *extend.mutable_key() = begin.key();
    v1::FileSpec& file = *extend.add_files();
    file.set_path("f" + std::to_string(i));
    file.set_size_bytes(kSegment - 100);
    Answer<v1::ExtendResponse> extended;
    engine_->Extend(As(sessions[0]), extend, extended.reply());
    RunQueued([&] { return extended.has(); });
    ASSERT_TRUE(extended.status().ok()) << extended.status();
    EXPECT_EQ(extended.get().segments_size(), i + 1);
    *seal.add_files() = file;
  }
  Answer<v1::SealResponse> sealed;
  engine_->Seal(As(sessions[0]), seal, sealed.reply());
  RunQueued();
  EXPECT_THAT(Tags(), ElementsAre("one"));
  EXPECT_EQ(disks_[1]->bytes.size(), 3u);
}

// A client that does not wait for the answer of Extend would otherwise write past the end of its memory.
TEST_F(EngineTest, FileIsNeitherWrittenNorSealedBeforeItsExtendHasGotTheMemory) {
  auto sessions = Launch("a", 1);
  const v1::BeginRequest begin = GrowingBeginOf("one");
  ASSERT_TRUE(Begin(sessions[0], begin).status().ok());
  const v1::ExtendRequest extend = ExtendOf(begin, kSegment);
  v1::SealRequest seal;
  *seal.mutable_key() = begin.key();
  *seal.mutable_files() = extend.files();
  Answer<v1::ExtendResponse> extended;
  engine_->Extend(As(sessions[0]), extend, extended.reply());
  ASSERT_FALSE(extended.has());
  const auto write = [&] {
    return engine_->BeginWrite(As(sessions[0]), begin.key(), "f", [](const absl::Status&) {});
  };
  EXPECT_EQ(ReasonOf(write().status()), "UNKNOWN_FILE");
  Answer<v1::SealResponse> early;
  engine_->Seal(As(sessions[0]), seal, early.reply());
  EXPECT_EQ(early.reason(), "INVALID_ARGUMENT");
  RunQueued([&] { return extended.has(); });
  const auto target = write();
  ASSERT_TRUE(target.ok()) << target.status();
  engine_->EndWrite(target->id);
  Answer<v1::SealResponse> sealed;
  engine_->Seal(As(sessions[0]), seal, sealed.reply());
  EXPECT_TRUE(sealed.status().ok()) << sealed.status();
}

TEST_F(EngineTest, GrowingPartGetsTheMemoryOfLastPartAtOnceAndPlacesFilesItself) {
  auto sessions = Launch("a", 1);
  const v1::BeginRequest last = BeginOf(0, "one", 1, kSegment + 1);
  auto first = Begin(sessions[0], last);
  RunQueued([&] { return first.has(); });
  ASSERT_TRUE(Seal(sessions[0], last).status().ok());
  RunQueued();
  v1::BeginRequest begin;
  *begin.mutable_key() = Key(0, "two");
  begin.set_growing(true);
  auto begun = Begin(sessions[0], begin);
  RunQueued([&] { return begun.has(); });
  ASSERT_TRUE(begun.status().ok()) << begun.status();
  EXPECT_EQ(begun.get().segments_size(), 2);
  for (const auto& [path, bytes] : {std::pair("a", int64_t{100}), std::pair("b", kSegment)}) {
    v1::FileSpec& file = *begin.add_files();
    file.set_path(path);
    file.set_size_bytes(bytes);
  }
  ASSERT_TRUE(Seal(sessions[0], begin).status().ok());
  RunQueued();
  EXPECT_THAT(Tags(), ElementsAre("two", "one"));
}

// 2^62 bytes in segments of 2^21 are more than an int counts, and those of two ranks more than an int64_t.
TEST_F(EngineTest, RefusesImpossibleSizesWithoutOverflow) {
  auto sessions = Launch("a", 2);
  for (const int64_t size : {int64_t{1} << 62, int64_t{1} << 61, int64_t{1} << 53, int64_t{1} << 52}) {
    const std::string tag = "t" + std::to_string(size);
    auto first = Begin(sessions[0], BeginOf(0, tag, 1, size));
    auto second = Begin(sessions[1], BeginOf(1, tag, 1, size));
    AdvanceClock(
        std::chrono::seconds(31));  // What was refused for one rank alone leaves the other one waiting.
    EXPECT_FALSE(first.status().ok()) << size;
    EXPECT_FALSE(second.status().ok()) << size;
  }
  EXPECT_EQ(pool_->usage().used_bytes, 0);
}

TEST_F(EngineTest, RefusesGrowingPartBeyondAnyMachine) {
  auto sessions = Launch("a", 1);
  for (const int64_t size : {int64_t{1} << 62, int64_t{1} << 53, int64_t{1} << 45}) {
    const v1::BeginRequest begin = GrowingBeginOf("t" + std::to_string(size));
    ASSERT_TRUE(Begin(sessions[0], begin).status().ok());
    const v1::ExtendRequest extend = ExtendOf(begin, size);
    Answer<v1::ExtendResponse> extended;
    engine_->Extend(As(sessions[0]), extend, extended.reply());
    RunQueued();
    EXPECT_FALSE(extended.status().ok()) << size;
    EXPECT_TRUE(extended.has()) << size;
  }
}

TEST_F(EngineTest, EndlessWriteDoesNotKeepMemoryOfFailedSave) {
  auto sessions = Launch("a", 1);
  auto one = BeginOf(0, "one", 1, 16 * kSegment);  // All there is.
  one.mutable_commit_timeout()->set_seconds(5);
  auto begun = Begin(sessions[0], one);
  RunQueued([&] { return begun.has(); });
  std::vector<absl::Status> revoked;
  auto target = engine_->BeginWrite(As(sessions[0]), one.key(), "rank0.pt",
                                    [&](const absl::Status& why) { revoked.push_back(why); });
  ASSERT_TRUE(target.ok()) << target.status();
  AdvanceClock(std::chrono::seconds(6));
  ASSERT_EQ(revoked.size(), 1u);
  EXPECT_EQ(ReasonOf(revoked[0]), "RANKS_MISSING");
  auto two = Begin(sessions[0], BeginOf(0, "two", 2, 16 * kSegment));
  RunQueued([&] { return two.has(); });
  EXPECT_TRUE(two.status().ok()) << two.status();
  engine_->EndWrite(target->id);  // Too late to matter.
  EXPECT_EQ(revoked.size(), 1u);
}

// protobuf serializes a string that is not UTF-8 but refuses to parse it: one such string would make the
// whole run record unreadable.
TEST_F(EngineTest, TruncatesAbortMessageBetweenCharacters) {
  auto sessions = Launch("a", 1);
  for (const char* character : {"\u00fc", "\u3042", "\U0001f600"}) {
    for (const char* before : {"", "x", "xx", "xxx"}) {
      const std::string tag = std::to_string(observer_.ended.size());
      auto begin = BeginOf(0, "t" + tag, 1, 100);
      auto begun = Begin(sessions[0], begin);
      RunQueued([&] { return begun.has(); });
      v1::AbortRequest abort;
      *abort.mutable_key() = begin.key();
      std::string message = before;
      while (message.size() < 2000) message += character;
      abort.set_message(message);
      Answer<v1::AbortResponse> aborted;
      engine_->Abort(As(sessions[0]), abort, aborted.reply());
      RunQueued();
      ASSERT_EQ(std::to_string(observer_.ended.size() - 1), tag);
      v1::Checkpoint read;
      ASSERT_TRUE(read.ParseFromString(observer_.ended.back().checkpoint.SerializeAsString()));
      EXPECT_THAT(read.error().message(), HasSubstr(message.substr(0, 990)));
    }
  }
  storage::v1::RunRecord record;
  ASSERT_TRUE(record.ParseFromString(disks_[1]->run_record.SerializeAsString()));
  EXPECT_GT(record.outcomes_size(), 0);
}

TEST_F(EngineTest, AcceptsOnlyFewValidTagsAsOrphans) {
  auto sessions = Launch("a", 1);
  for (const std::string& tag : {std::string(), std::string("../x"), std::string(1 << 20, 'x')}) {
    EXPECT_EQ(Join(sessions[0], 0, 1, "a", {Key(0, tag)}).reason(), "INVALID_TAG");
  }
  std::vector<v1::SaveKey> many;
  for (int i = 0; i < 1001; ++i) many.push_back(Key(0, "t" + std::to_string(i)));
  EXPECT_EQ(Join(sessions[0], 0, 1, "a", many).reason(), "INVALID_ARGUMENT");
  many.resize(1000);
  EXPECT_TRUE(Join(sessions[0], 0, 1, "a", many).status().ok());
  v1::ListCheckpointsRequest request;
  request.set_parent(run_);
  request.set_show_all(true);
  request.set_page_size(1000);
  Answer<v1::ListCheckpointsResponse> listed;
  engine_->ListCheckpoints(Caller{0, 0, true}, request, listed.reply());
  EXPECT_LE(listed.get().checkpoints_size(), 64);
}

TEST_F(EngineTest, MemoryOfUnsealedPartIsNotLentAgain) {
  auto sessions = Launch("a", 1);
  auto one = BeginOf(0, "one", 1, 100);
  auto a = Begin(sessions[0], one);
  RunQueued([&] { return a.has(); });
  v1::AbortRequest abort;
  *abort.mutable_key() = one.key();
  Answer<v1::AbortResponse> aborted;
  engine_->Abort(As(sessions[0]), abort, aborted.reply());
  RunQueued();
  auto b = Begin(sessions[0], BeginOf(0, "two", 2, 100));
  RunQueued([&] { return b.has(); });
  EXPECT_NE(a.get().segments(0).id(), b.get().segments(0).id());  // The old copy may still be under way.
  EXPECT_THAT(b.get().retired_segments(), ElementsAre(a.get().segments(0).id()));
}

TEST_F(EngineTest, ResumeOfEndedSessionIsAnswered) {
  auto old_ranks = Launch("a", 1);
  ios_[1]->hold_writes = true;
  SaveAll(old_ranks, "one", 1);
  auto new_ranks = Launch("b", 1);
  auto resumed = Resume(new_ranks[0], 0);
  EXPECT_FALSE(resumed.has());
  engine_->SessionClosed(new_ranks[0], "killed");
  EXPECT_EQ(resumed.reason(), "SESSION_LOST");
}

TEST_F(EngineTest, RescansRootWhenDirectoryCouldNotBeMovedAway) {
  auto sessions = Launch("a", 1);
  ios_[1]->publish_result = {PublishOutcome::kFailed, ErrnoError(EIO, "writing the manifest")};
  ios_[1]->discard_error = ErrnoError(EIO, "syncing the trash");
  SaveAll(sessions, "one", 1);
  EXPECT_EQ(Wait(sessions[0], Key(0, "one")).get().checkpoint().level(), v1::INDETERMINATE);
  ios_[1]->publish_result = {PublishOutcome::kCommitted, absl::OkStatus()};
  ios_[1]->discard_error = absl::OkStatus();
  SaveAll(sessions, "two", 2);  // The scan has been: it takes saves again.
  EXPECT_THAT(Tags(), ElementsAre("two"));
}

TEST_F(EngineTest, CommitTimeoutBoundsTheWaitForRanksThatDoNotBegin) {
  auto sessions = Launch("a", 2);
  auto begin = BeginOf(0, "one", 1, 1);
  begin.mutable_timeout()->set_seconds(30);
  begin.mutable_commit_timeout()->set_seconds(4);
  auto begun = Begin(sessions[0], begin);
  AdvanceClock(std::chrono::seconds(3));
  EXPECT_FALSE(begun.has());
  AdvanceClock(std::chrono::seconds(2));
  RunQueued([&] { return begun.has(); });
  EXPECT_EQ(begun.reason(), "RANKS_MISSING");
}

TEST_F(EngineTest, SkipDoesNotWaitForAFileSystemThatHangs) {
  auto sessions = Launch("a", 2);
  ios_[1]->hold_target = true;
  auto skip0 = BeginOf(0, "one", 1, 1), skip1 = BeginOf(1, "one", 1, 1);
  skip0.set_busy(v1::SKIP);
  skip1.set_busy(v1::SKIP);
  auto a = Begin(sessions[0], skip0), b = Begin(sessions[1], skip1);
  AdvanceClock(std::chrono::seconds(2));
  EXPECT_FALSE(a.has() || b.has()) << "a file system may be slow for a moment";
  AdvanceClock(std::chrono::seconds(2));
  RunQueued([&] { return a.has() && b.has(); });
  EXPECT_EQ(a.get().level(), v1::SKIPPED);
  EXPECT_EQ(b.get().level(), v1::SKIPPED);
  ios_[1]->hold_target = false;
  ios_[1]->ReleaseHeld();
  SaveAll(sessions, "two", 2);
  EXPECT_THAT(Tags(), ElementsAre("two"));
}

TEST_F(EngineTest, SavesAfterACheckpointThatWasMovedInAreNewer) {
  auto sessions = Launch("a", 1);
  SaveAll(sessions, "one", 1);
  CommittedCheckpoint moved = disks_[1]->committed.begin()->second;
  moved.summary.set_tag("moved");
  moved.summary.set_sequence(100);
  disks_[1]->committed[100] = moved;
  ios_[1]->publish_result.root_has_new_checkpoints = true;
  SaveAll(sessions, "two", 2);  // Its commit finds the checkpoint.
  ios_[1]->publish_result.root_has_new_checkpoints = false;
  EXPECT_THAT(Tags(), ElementsAre("moved", "two", "one"));
  SaveAll(sessions, "three", 3);
  EXPECT_THAT(Tags(), ElementsAre("three", "moved", "two", "one"));
  EXPECT_EQ(disks_[1]->committed.rbegin()->first, 101);
  EXPECT_EQ(ios_[1]->calls["Rescan"], 1);
}

TEST_F(EngineTest, SaveThatBeginsBeforeTheScanIsNewerThanWhatWasMovedIn) {
  auto sessions = Launch("a", 1);
  ios_[1]->held.insert("Rescan");
  ios_[1]->publish_result.root_has_new_checkpoints = true;
  ios_[1]->publish_result.highest_new_sequence = 100;
  SaveAll(sessions, "one", 1);
  ios_[1]->publish_result = {PublishOutcome::kCommitted, absl::OkStatus()};
  auto begun = Begin(sessions[0], BeginOf(0, "two", 2, 1));
  RunQueued([&] { return begun.has(); });
  ASSERT_TRUE(begun.status().ok()) << begun.status();
  ios_[1]->held.clear();
  ios_[1]->ReleaseHeld();
  SaveAll(sessions, "three", 3);
  EXPECT_EQ(disks_[1]->committed.rbegin()->first, 102);
}

TEST_F(EngineTest, RetriesFailedScan) {
  auto sessions = Launch("a", 1);
  ios_[1]->publish_result = {PublishOutcome::kIndeterminate, ErrnoError(EIO, "syncing the root")};
  ios_[1]->errors["Rescan"] = ErrnoError(EIO, "scanning");
  SaveAll(sessions, "one", 1);
  ios_[1]->publish_result = {PublishOutcome::kCommitted, absl::OkStatus()};
  EXPECT_EQ(Begin(sessions[0], BeginOf(0, "two", 2, 100)).reason(), "ROOT_READ_ONLY");
  ios_[1]->errors.clear();
  AdvanceClock(std::chrono::seconds(2));
  SaveAll(sessions, "two", 2);
  EXPECT_THAT(Tags(), ElementsAre("two"));
}

TEST_F(EngineTest, ScanFindsHalfRemovedEvictionVictim) {
  auto sessions = Launch("a", 1);
  SaveAll(sessions, "one", 1, 1);
  ios_[1]->errors["Evict"] = ErrnoError(EIO, "syncing the root");
  SaveAll(sessions, "two", 2, 1);
  EXPECT_EQ(ios_[1]->calls["Rescan"], 1);
}

TEST_F(EngineTest, RetriesTrashThatCouldNotBeEmptied) {
  auto sessions = Launch("a", 1);
  ios_[1]->errors["EmptyTrash"] = ErrnoError(EIO, "removing");
  SaveAll(sessions, "one", 1);
  disks_[1]->trash_bytes = 100;
  for (int tries = 0; tries < 5; ++tries) AdvanceClock(std::chrono::seconds(2));
  EXPECT_THAT(observer_.warnings, SizeIs(1)) << "said once";
  ios_[1]->errors.clear();
  AdvanceClock(std::chrono::seconds(2));
  EXPECT_EQ(disks_[1]->trash_bytes, 0);
}

TEST_F(EngineTest, SaveWaitingForDiskPollsAtIntervals) {
  auto sessions = Launch("a", 1);
  ios_[1]->hold_writes = true;
  SaveAll(sessions, "one", 1);
  disks_[1]->free_bytes = 3 << 20;
  auto begun = Begin(sessions[0], BeginOf(0, "two", 2, 10 << 20));  // Turns until nothing is left to do.
  EXPECT_FALSE(begun.has());
  disks_[1]->free_bytes = 30 << 20;  // Somebody tidied up.
  AdvanceClock(std::chrono::seconds(2));
  RunQueued([&] { return begun.has(); });
  EXPECT_EQ(begun.status(), absl::OkStatus());
}

TEST_F(EngineTest, LeaseOfEndedSessionHoldsNothing) {
  auto first = Launch("a", 1);
  SaveAll(first, "one", 1, 1);
  auto second = Launch("b", 1);
  v1::ResumeRequest request;
  request.set_run(run_);
  Answer<v1::ResumeResponse> resumed;
  engine_->Resume(As(second[0]), request, resumed.reply());
  engine_->SessionClosed(second[0], "killed");  // While the ledger remembers the attempt and the decision.
  RunQueued();
  EXPECT_EQ(resumed.reason(), "SESSION_LOST");
  auto third = Launch("c", 1);
  SaveAll(third, "two", 2, 1);
  RunQueued();
  EXPECT_THAT(Tags(), ElementsAre("two"));
}

TEST_F(EngineTest, RoomWrittenSinceDiskWasAskedIsNotPromisedAgain) {
  disks_[1] = std::make_shared<FakeDisk>();
  disks_[1]->free_bytes = 16 << 20;
  auto sessions = Launch("a", 1);
  ios_[1]->hold_publish = true;
  auto one = BeginOf(0, "one", 1, 6 << 20);
  auto a = Begin(sessions[0], one);
  RunQueued([&] { return a.has(); });
  auto b = Begin(sessions[0], BeginOf(0, "two", 2, 9 << 20));  // 7 MiB of 16 are promised.
  EXPECT_FALSE(b.has());
  Seal(sessions[0], one);  // Writes 6 of them. Nobody has asked the disk since.
  ASSERT_EQ(pool_->usage().used_bytes, 3 * kSegment);
  engine_->SessionClosed(Trainer("somebody"), "left");  // Admission looks again.
  RunQueued();
  EXPECT_EQ(pool_->usage().used_bytes, 3 * kSegment);
  EXPECT_FALSE(b.has()) << b.status();
}

TEST_F(EngineTest, PartLargerThanExpectedNeedsDiskSpaceToo) {
  disks_[1] = std::make_shared<FakeDisk>();
  disks_[1]->free_bytes = 8 << 20;
  auto sessions = Launch("a", 2);
  SaveAll(sessions, "one", 1);
  auto a = Begin(sessions[0], BeginOf(0, "two", 2, 100));
  RunQueued([&] { return a.has(); });
  ASSERT_TRUE(a.status().ok()) << a.status();  // Rank 1 is expected to bring as little as last time.
  auto b = Begin(sessions[1], BeginOf(1, "two", 2, 20 << 20));
  EXPECT_EQ(b.reason(), "NO_SPACE");
}

TEST_F(EngineTest, SkipDoesNotWaitBehindWaitingSave) {
  Start(4);
  auto sessions = Launch("a", 1);
  ios_[1]->hold_writes = true;
  auto one = BeginOf(0, "one", 1, 4 * kSegment), two = BeginOf(0, "two", 2, 4 * kSegment);
  auto a = Begin(sessions[0], one);
  RunQueued([&] { return a.has(); });
  Seal(sessions[0], one);
  EXPECT_FALSE(Begin(sessions[0], two).has());
  auto three = BeginOf(0, "three", 3, 100);
  three.set_busy(v1::SKIP);
  auto c = Begin(sessions[0], three);
  ASSERT_TRUE(c.has());
  EXPECT_EQ(c.get().level(), v1::SKIPPED);
}

TEST_F(EngineTest, CheckpointBeingPinnedIsNotEvictedByEarlierUnpin) {
  auto sessions = Launch("a", 1);
  SaveAll(sessions, "one", 1, 1);
  const std::string name = run_ + "/checkpoints/one";
  Answer<v1::Checkpoint> first, unpinned, again;
  engine_->SetPinned(As(sessions[0]), name, true, first.reply());
  RunQueued();
  SaveAll(sessions, "two", 2, 1);
  engine_->SetPinned(As(sessions[0]), name, false, unpinned.reply());
  engine_->SetPinned(As(sessions[0]), name, true, again.reply());
  RunQueued();
  EXPECT_EQ(again.status(), absl::OkStatus());
  EXPECT_THAT(disks_[1]->evicted, ElementsAre());
  EXPECT_THAT(Tags(), ElementsAre("two", "one"));
}

TEST_F(EngineTest, AbortedSaveIsNotFailedWhileRecoveryCouldPublishIt) {
  auto sessions = Launch("a", 1);
  auto request = BeginOf(0, "one", 1, 100);
  auto begun = Begin(sessions[0], request);
  RunQueued([&] { return begun.has(); });
  ios_[1]->hold_writes = true;
  ASSERT_TRUE(Seal(sessions[0], request).status().ok());
  v1::AbortRequest abort;
  *abort.mutable_key() = request.key();
  Answer<v1::AbortResponse> aborted;
  engine_->Abort(As(sessions[0]), abort, aborted.reply());
  // If the daemon were killed now, its successor could find the save complete and publish it.
  EXPECT_EQ(Seal(sessions[0], request).status(), absl::OkStatus());
  EXPECT_EQ(Begin(sessions[0], request).status(), absl::OkStatus());
  auto wait = Wait(sessions[0], request.key());
  EXPECT_FALSE(wait.has());
  ios_[1]->ReleaseHeld();
  RunQueued();
  ASSERT_TRUE(wait.has());
  EXPECT_EQ(wait.get().checkpoint().error().reason(), "SAVE_ABORTED");
  EXPECT_EQ(Seal(sessions[0], request).reason(), "SAVE_ABORTED");
}

TEST_F(EngineTest, RefusesSealOfOtherProcessForSameRank) {
  auto first = Launch("a", 2);
  auto request = BeginOf(0, "one", 1, 100), other = BeginOf(1, "one", 1, 100);
  auto a = Begin(first[0], request), b = Begin(first[1], other);
  RunQueued([&] { return a.has() && b.has(); });
  ASSERT_TRUE(Seal(first[0], request).status().ok());
  Launch("b", 2);  // Joins only: the first one goes on.
  engine_->SessionClosed(first[0], "killed");
  SessionId successor = Trainer("successor");
  EXPECT_EQ(Join(successor, 0, 2, "a").reason(), "FENCED");
  v1::BeginRequest nothing = request;
  nothing.clear_files();
  EXPECT_EQ(Seal(successor, nothing).reason(), "NOT_JOINED");
  // The same process with a new session is a retry.
  SessionId again = Trainer("a/1");
  ASSERT_TRUE(Seal(first[1], other).status().ok());
  ASSERT_TRUE(Join(again, 1, 2, "a").status().ok());
  EXPECT_EQ(Seal(again, other).status(), absl::OkStatus());
}

TEST_F(EngineTest, SavesInFlightUseSeparateMemory) {
  auto sessions = Launch("a", 1);
  ios_[1]->hold_writes = true;
  auto one = BeginOf(0, "one", 1, 100), two = BeginOf(0, "two", 2, 100);
  auto a = Begin(sessions[0], one);
  RunQueued([&] { return a.has(); });
  Seal(sessions[0], one);
  auto b = Begin(sessions[0], two);
  RunQueued([&] { return b.has(); });
  EXPECT_NE(a.get().segments(0).id(), b.get().segments(0).id());
  Seal(sessions[0], two);
  ios_[1]->ReleaseHeld();
  RunQueued();
  auto c = Begin(sessions[0], BeginOf(0, "three", 3, 100));
  RunQueued([&] { return c.has(); });
  EXPECT_EQ(a.get().segments(0).id(), c.get().segments(0).id());  // Lent to the same session again.
}

TEST_F(EngineTest, WatchShowsProgressOfReaders) {
  const auto sessions = Launch("a", 2);
  SaveAll(sessions, "one", 1);
  RunQueued([&] { return Tags() == std::vector<std::string>{"one"}; });
  std::vector<v1::Restore> seen, of_others;
  absl::Status refused;
  const auto into = [](std::vector<v1::Restore>* events) {
    return [events](const v1::WatchResponse& event) {
      if (event.has_restore()) events->push_back(event.restore());
      return true;
    };
  };
  engine_->AddWatcher(As(0), v1::WatchRequest(), into(&seen), &refused);
  engine_->AddWatcher(As(0, 2000), v1::WatchRequest(), into(&of_others), &refused);
  const auto opened = Open(sessions[1], "one");
  const auto report = [&](SessionId session, int64_t read, int64_t total) {
    v1::ReportReadingRequest request;
    request.set_lease(opened.get().lease());
    request.set_read_bytes(read);
    request.set_total_bytes(total);
    Answer<v1::ReportReadingResponse> answer;
    engine_->ReportReading(As(session), request, answer.reply());
    return answer.reason();
  };
  EXPECT_EQ(report(sessions[1], 40, 100), "");
  EXPECT_EQ(report(sessions[1], 101, 100), "INVALID_ARGUMENT");
  EXPECT_EQ(report(sessions[0], 1, 100), "UNKNOWN_LEASE");
  Close(sessions[1], opened.get().lease());
  ASSERT_EQ(seen.size(), 2u);
  EXPECT_EQ(seen[0].checkpoint(), run_ + "/checkpoints/one");
  EXPECT_EQ(seen[0].rank(), 1);
  EXPECT_EQ(seen[0].read_bytes(), 40);
  EXPECT_EQ(seen[0].total_bytes(), 100);
  EXPECT_FALSE(seen[0].ended());
  EXPECT_TRUE(seen[1].ended());
  EXPECT_TRUE(of_others.empty()) << "another user's run";
  Close(sessions[0], Open(sessions[0], "one").get().lease());
  EXPECT_EQ(seen.size(), 2u) << "what is read at once is not worth a word";
}

}  // namespace
}  // namespace ckptd
