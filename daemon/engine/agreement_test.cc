// Promise 7: the engine remembers damage, passes damaged checkpoints over, and makes all ranks resume from
// the same whole checkpoint.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/engine_fixture.h"

namespace ckptd {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class AgreementTest : public EngineTest {
 protected:
  // Saves two checkpoints with an attempt that ends, and joins the ranks of the next attempt.
  std::vector<SessionId> Restarted(int world = 2) {
    const auto before = Launch("a", world);
    SaveAll(before, "one", 1);
    SaveAll(before, "two", 2);
    RunQueued([&] { return disks_[1]->committed.size() == 2; });
    for (SessionId session : before) engine_->SessionClosed(session, "ended");
    return Launch("b", world);
  }
  int64_t SequenceOf(const std::string& tag) {
    for (const auto& entry : disks_[1]->committed) {
      if (entry.second.summary.tag() == tag) return entry.first;
    }
    return 0;
  }
  v1::FinishResumeRequest FinishOf(int rank, const std::string& tag) {
    v1::FinishResumeRequest request;
    request.set_run(run_);
    request.set_rank(rank);
    request.set_sequence(SequenceOf(tag));
    request.mutable_timeout()->set_seconds(100);
    return request;
  }
  Answer<v1::FinishResumeResponse> Finish(SessionId session, const v1::FinishResumeRequest& request) {
    Answer<v1::FinishResumeResponse> answer;
    engine_->FinishResume(As(session), request, answer.reply());
    RunQueued();
    return answer;
  }
  Answer<v1::FinishResumeResponse> Finish(SessionId session, int rank, const std::string& tag) {
    return Finish(session, FinishOf(rank, tag));
  }
  Answer<v1::FinishResumeResponse> FindDamage(SessionId session, int rank, const std::string& tag) {
    auto request = FinishOf(rank, tag);
    v1::Damage& damage = *request.mutable_damage();
    damage.set_path("rank1.pt");
    damage.set_chunk(3);
    damage.set_expected("0x01");
    damage.set_found("0x02");
    damage.set_message("chunk 3 has CRC32C 0x02");
    return Finish(session, request);
  }
  Answer<v1::ReportDamageResponse> Report(SessionId session, const std::string& tag, int64_t sequence) {
    v1::ReportDamageRequest request;
    request.set_name(run_ + "/checkpoints/" + tag);
    request.set_sequence(sequence);
    request.mutable_damage()->set_message("rotten");
    Answer<v1::ReportDamageResponse> answer;
    engine_->ReportDamage(As(session), request, answer.reply());
    RunQueued();
    return answer;
  }
  Answer<v1::ReportDamageResponse> Report(SessionId session, const std::string& tag) {
    return Report(session, tag, SequenceOf(tag));
  }
  Answer<v1::Checkpoint> Get(const std::string& tag) {
    v1::GetCheckpointRequest request;
    request.set_name(run_ + "/checkpoints/" + tag);
    request.set_view(v1::FULL);
    Answer<v1::Checkpoint> answer;
    engine_->GetCheckpoint(Caller{0, 0, true}, request, answer.reply());
    RunQueued();
    return answer;
  }
  Answer<v1::Checkpoint> Clear(const std::string& tag) {
    Answer<v1::Checkpoint> answer;
    engine_->ClearDamage(Caller{0, 0, true}, run_ + "/checkpoints/" + tag, answer.reply());
    RunQueued();
    return answer;
  }
  Answer<v1::ResumeResponse> ResumeStrictly(SessionId session, int rank) {
    v1::ResumeRequest request;
    request.set_run(run_);
    request.set_rank(rank);
    request.set_strict(true);
    Answer<v1::ResumeResponse> answer;
    engine_->Resume(As(session), request, answer.reply());
    RunQueued();
    return answer;
  }
  std::string ResumedFrom(SessionId session, int rank) {
    const auto resumed = Resume(session, rank);
    if (!resumed.status().ok()) return resumed.reason();
    return resumed.get().checkpoint().tag();
  }
};

TEST_F(AgreementTest, NoRankContinuesBeforeEveryRankHasReadItsPart) {
  const auto ranks = Restarted(3);
  for (int rank : {0, 1, 2}) EXPECT_EQ(ResumedFrom(ranks[rank], rank), "two");
  const auto first = Finish(ranks[0], 0, "two"), second = Finish(ranks[2], 2, "two");
  EXPECT_FALSE(first.has() || second.has());
  EXPECT_FALSE(Finish(ranks[0], 0, "two").has()) << "a retry is not another rank";
  const auto last = Finish(ranks[1], 1, "two");
  EXPECT_TRUE(first.status().ok() && second.status().ok() && last.status().ok());
}

TEST_F(AgreementTest, RetentionLeavesTheOtherModelAloneAfterASaveWhoseOutcomeWasUnknown) {
  const auto before = Launch("a", 1);
  SaveAll(before, "one", 1, /*keep=*/2);
  SaveAll(before, "two", 2, /*keep=*/2);
  RunQueued([&] { return disks_[1]->committed.size() == 2; });
  engine_->SessionClosed(before[0], "ended");
  const auto ranks = Launch("b", 1);
  ASSERT_EQ(ResumedFrom(ranks[0], 0), "two");
  auto failed = FinishOf(0, "two");
  failed.set_failure("it is of another model");
  ASSERT_TRUE(Finish(ranks[0], failed).status().ok());
  ios_[1]->publish_result = {PublishOutcome::kIndeterminate, ErrnoError(EIO, "syncing the root")};
  ios_[1]->errors["Rescan"] = ErrnoError(EIO, "scanning");
  SaveAll(ranks, "other", 1);
  const auto unknown = Wait(ranks[0], Key(0, "other"));
  ASSERT_EQ(unknown.get().checkpoint().level(), v1::INDETERMINATE);
  // It was published.
  storage::v1::ManifestSummary& summary = disks_[1]->committed[unknown.get().checkpoint().sequence()].summary;
  summary.set_tag("other");
  summary.set_sequence(unknown.get().checkpoint().sequence());
  summary.set_attempt(2);
  ios_[1]->errors.clear();
  AdvanceClock(std::chrono::seconds(2));
  ASSERT_THAT(Tags(), ElementsAre("other", "two", "one")) << "the scan has found it";
  // The end of any save has retention look again.
  const auto request = BeginOf(0, "ended", 2, 100);
  ASSERT_TRUE(Begin(ranks[0], request).status().ok());
  v1::AbortRequest abort;
  *abort.mutable_key() = request.key();
  Answer<v1::AbortResponse> aborted;
  engine_->Abort(As(ranks[0]), abort, aborted.reply());
  RunQueued();
  ASSERT_TRUE(aborted.status().ok());
  EXPECT_THAT(Tags(), ElementsAre("other", "two", "one"));
}

TEST_F(AgreementTest, DamageFoundByOneRankGivesAllRanksNextOlderCheckpoint) {
  const auto ranks = Restarted(3);
  for (int rank : {0, 1, 2}) ASSERT_EQ(ResumedFrom(ranks[rank], rank), "two");
  const auto waiting = Finish(ranks[0], 0, "two");
  EXPECT_TRUE(FindDamage(ranks[1], 1, "two").status().ok());
  EXPECT_EQ(waiting.reason(), "CHECKPOINT_DAMAGED");
  EXPECT_THAT(std::string(waiting.status().message()),
              AllOf(HasSubstr("two"), HasSubstr("rank1.pt"), HasSubstr("chunk 3"), HasSubstr("rank 1")));
  EXPECT_EQ(DetailsOf(waiting.status()).at("expected"), "0x01");
  EXPECT_EQ(DetailsOf(waiting.status()).at("found"), "0x02");
  EXPECT_EQ(Finish(ranks[2], 2, "two").reason(), "CHECKPOINT_DAMAGED") << "one that read on hears it, too";
  for (int rank : {0, 1, 2}) EXPECT_EQ(ResumedFrom(ranks[rank], rank), "one");
  const auto resumed = Resume(ranks[0], 0);
  ASSERT_EQ(resumed.get().passed_over_size(), 1);
  EXPECT_EQ(resumed.get().passed_over(0).tag(), "two");
  EXPECT_EQ(resumed.get().passed_over(0).damage().path(), "rank1.pt");
  EXPECT_EQ(resumed.get().passed_over(0).damage().chunk(), 3);
  const auto zero = Finish(ranks[0], 0, "one"), one = Finish(ranks[1], 1, "one");
  const auto two = Finish(ranks[2], 2, "one");
  EXPECT_TRUE(zero.status().ok() && one.status().ok() && two.status().ok());
  EXPECT_THAT(observer_.warnings,
              Contains(AllOf(HasSubstr("two is damaged"), HasSubstr("one is the latest"))));
}

TEST_F(AgreementTest, RestartedDaemonRemembersDamageAndOffersItToNoRank) {
  auto ranks = Restarted();
  for (int rank : {0, 1}) ASSERT_EQ(ResumedFrom(ranks[rank], rank), "two");
  ASSERT_TRUE(FindDamage(ranks[1], 1, "two").status().ok());
  Start(16);  // The decision for "two" is still in the run's record.
  const auto again = Launch("b", 2);
  EXPECT_EQ(ResumedFrom(again[0], 0), "one");
  EXPECT_EQ(Finish(again[1], 1, "two").reason(), "CHECKPOINT_DAMAGED") << "it repeats what was not answered";
  const auto next = Launch("c", 2);
  EXPECT_EQ(ResumedFrom(next[0], 0), "one");
  EXPECT_EQ(Get("latest").get().tag(), "one");
  EXPECT_EQ(Get("two").get().damage().message(), "chunk 3 has CRC32C 0x02 (found by rank 1)");
}

TEST_F(AgreementTest, AgreementIsRememberedForRanksThatMissedTheAnswer) {
  auto ranks = Restarted();
  for (int rank : {0, 1}) ASSERT_EQ(ResumedFrom(ranks[rank], rank), "two");
  const auto first = Finish(ranks[0], 0, "two");
  ios_[1]->held.insert("SaveRunRecord");
  const auto last = Finish(ranks[1], 1, "two");
  EXPECT_FALSE(first.has() || last.has()) << "before it is on disk";
  ios_[1]->ReleaseHeld();
  RunQueued();
  ASSERT_TRUE(first.status().ok() && last.status().ok());
  Start(16);
  const auto again = Launch("b", 2);
  EXPECT_TRUE(Finish(again[1], 1, "two").status().ok()) << "rank 0 trains on and does not ask any more";
}

TEST_F(AgreementTest, AttemptStaysWithWhatAllItsRanksHaveRead) {
  const auto ranks = Restarted();
  for (int rank : {0, 1}) ASSERT_EQ(ResumedFrom(ranks[rank], rank), "two");
  const auto first = Finish(ranks[0], 0, "two"), last = Finish(ranks[1], 1, "two");
  ASSERT_TRUE(first.status().ok() && last.status().ok());
  ASSERT_TRUE(Report(ranks[1], "two").status().ok());
  ASSERT_EQ(Get("latest").get().tag(), "one");
  EXPECT_EQ(ResumedFrom(ranks[0], 0), "two") << "its peers train on from that";
  const auto next = Launch("another", 2);
  EXPECT_EQ(ResumedFrom(next[0], 0), "one");
}

TEST_F(AgreementTest, AgreementFailsWhenItCannotBeRecorded) {
  auto ranks = Restarted();
  for (int rank : {0, 1}) ASSERT_EQ(ResumedFrom(ranks[rank], rank), "two");
  const auto first = Finish(ranks[0], 0, "two");
  ios_[1]->errors["SaveRunRecord"] = ErrnoError(ENOSPC, "writing");
  EXPECT_EQ(Finish(ranks[1], 1, "two").reason(), "NO_SPACE");
  EXPECT_EQ(first.reason(), "NO_SPACE");
  ios_[1]->errors.clear();
  const auto again = Finish(ranks[1], 1, "two");
  EXPECT_FALSE(again.has()) << "rank 0 was told that it may not go on, so it has to finish again, too";
  EXPECT_TRUE(Finish(ranks[0], 0, "two").status().ok());
  EXPECT_TRUE(again.status().ok());
}

TEST_F(AgreementTest, NamesAtOnceRankThatDiesWhileOthersWait) {
  const auto ranks = Restarted(3);
  for (int rank : {0, 1, 2}) ASSERT_EQ(ResumedFrom(ranks[rank], rank), "two");
  const auto waiting = Finish(ranks[0], 0, "two");
  engine_->SessionClosed(ranks[2], "killed");
  EXPECT_EQ(waiting.reason(), "RESUME_FAILED");
  EXPECT_EQ(DetailsOf(waiting.status()).at("ranks"), "2");
  EXPECT_EQ(Finish(ranks[1], 1, "two").reason(), "RESUME_FAILED") << "also who begins to wait only then";
  EXPECT_EQ(ResumedFrom(ranks[0], 0), "two") << "the checkpoint is as good as before";
}

TEST_F(AgreementTest, WaitsAgainForRankThatReconnectsAfterReadingItsPart) {
  const auto ranks = Restarted();
  for (int rank : {0, 1}) ASSERT_EQ(ResumedFrom(ranks[rank], rank), "two");
  const auto waiting = Finish(ranks[1], 1, "two");
  engine_->SessionClosed(ranks[1], "connection lost");
  EXPECT_EQ(waiting.reason(), "SESSION_LOST");
  const SessionId back = Trainer("b/1");  // The same process.
  ASSERT_TRUE(Join(back, 1, 2, "b").status().ok());
  const auto first = Finish(ranks[0], 0, "two");
  EXPECT_TRUE(first.status().ok()) << "rank 1 had read its part: " << first.status();
  EXPECT_TRUE(Finish(back, 1, "two").status().ok());
}

TEST_F(AgreementTest, NotifiesOtherRanksWhenOneCannotContinue) {
  const auto ranks = Restarted();
  for (int rank : {0, 1}) ASSERT_EQ(ResumedFrom(ranks[rank], rank), "two");
  const auto waiting = Finish(ranks[0], 0, "two");
  auto failed = FinishOf(1, "two");
  failed.set_failure("no memory on its device");
  EXPECT_TRUE(Finish(ranks[1], failed).status().ok());
  EXPECT_EQ(waiting.reason(), "RESUME_FAILED");
  EXPECT_THAT(std::string(waiting.status().message()),
              HasSubstr("rank 1 could not: no memory on its device"));
  EXPECT_EQ(Finish(ranks[0], 0, "two").reason(), "RESUME_FAILED") << "also who begins to wait only then";
  for (int rank : {0, 1}) EXPECT_EQ(ResumedFrom(ranks[rank], rank), "two");
  const auto first = Finish(ranks[0], 0, "two");
  EXPECT_FALSE(first.has()) << "rank 1 has not read it";
  EXPECT_TRUE(Finish(ranks[1], 1, "two").status().ok());
  EXPECT_TRUE(first.status().ok());
}

TEST_F(AgreementTest, NamesMissingRanksAtDeadline) {
  const auto ranks = Restarted(3);
  ASSERT_EQ(ResumedFrom(ranks[0], 0), "two");
  const auto waiting = Finish(ranks[0], 0, "two");
  EXPECT_LE(engine_->NextDeadline(), clock_.now + std::chrono::seconds(100));
  AdvanceClock(std::chrono::seconds(99));
  EXPECT_FALSE(waiting.has());
  AdvanceClock(std::chrono::seconds(2));
  EXPECT_EQ(waiting.reason(), "RESUME_INCOMPLETE");
  EXPECT_EQ(DetailsOf(waiting.status()).at("ranks"), "1,2");
}

TEST_F(AgreementTest, RankWhoseWaitExpiredCountsOnlyWhenItFinishesAgain) {
  const auto ranks = Restarted();
  for (int rank : {0, 1}) ASSERT_EQ(ResumedFrom(ranks[rank], rank), "two");
  const auto late = Finish(ranks[0], 0, "two");
  AdvanceClock(std::chrono::seconds(101));
  ASSERT_EQ(late.reason(), "RESUME_INCOMPLETE");
  const auto waiting = Finish(ranks[1], 1, "two");
  EXPECT_FALSE(waiting.has()) << "rank 0 was told that there is no agreement, and resumes again";
  ASSERT_EQ(ResumedFrom(ranks[0], 0), "two");
  EXPECT_TRUE(Finish(ranks[0], 0, "two").status().ok());
  EXPECT_TRUE(waiting.status().ok()) << waiting.status();
}

TEST_F(AgreementTest, RetriedFinishKeepsRankCountedWhenFirstCallExpires) {
  const auto ranks = Restarted();
  for (int rank : {0, 1}) ASSERT_EQ(ResumedFrom(ranks[rank], rank), "two");
  const auto first = Finish(ranks[0], 0, "two");
  AdvanceClock(std::chrono::seconds(50));
  const auto retry = Finish(ranks[0], 0, "two");
  AdvanceClock(std::chrono::seconds(51));
  ASSERT_EQ(first.reason(), "RESUME_INCOMPLETE");
  ASSERT_FALSE(retry.has());
  EXPECT_TRUE(Finish(ranks[1], 1, "two").status().ok());
  EXPECT_TRUE(retry.status().ok()) << retry.status();
}

TEST_F(AgreementTest, RankThatResumesAgainCountsOnlyWhenItFinishesAgain) {
  const auto ranks = Restarted();
  for (int rank : {0, 1}) ASSERT_EQ(ResumedFrom(ranks[rank], rank), "two");
  const auto unheard = Finish(ranks[0], 0, "two");
  engine_->SessionClosed(ranks[0], "connection lost");
  const SessionId back = Trainer("b/0");
  ASSERT_TRUE(Join(back, 0, 2, "b").status().ok());
  ASSERT_EQ(ResumedFrom(back, 0), "two");
  const auto waiting = Finish(ranks[1], 1, "two");
  EXPECT_FALSE(waiting.has()) << "rank 0 reads it once more";
  EXPECT_TRUE(Finish(back, 0, "two").status().ok());
  EXPECT_TRUE(waiting.status().ok()) << waiting.status();
}

TEST_F(AgreementTest, OnlyDiskDecidesOnceAllRanksHaveFinished) {
  const auto ranks = Restarted(3);
  for (int rank : {0, 1, 2}) ASSERT_EQ(ResumedFrom(ranks[rank], rank), "two");
  const auto first = Finish(ranks[0], 0, "two"), second = Finish(ranks[2], 2, "two");
  ios_[1]->held.insert("SaveRunRecord");
  const auto last = Finish(ranks[1], 1, "two");
  AdvanceClock(std::chrono::seconds(101));
  EXPECT_FALSE(first.has()) << "no rank is missing: " << first.status();
  engine_->SessionClosed(ranks[2], "killed");
  EXPECT_EQ(second.reason(), "SESSION_LOST");
  EXPECT_FALSE(first.has() || last.has()) << "rank 2 had read its part";
  auto failed = FinishOf(1, "two");
  failed.set_failure("too late");
  EXPECT_TRUE(Finish(ranks[1], failed).status().ok());
  const auto retry = Finish(ranks[0], 0, "two");
  EXPECT_FALSE(first.has() || last.has() || retry.has());
  ios_[1]->ReleaseHeld();
  RunQueued();
  EXPECT_TRUE(first.status().ok()) << first.status();
  EXPECT_TRUE(last.status().ok()) << last.status();
  EXPECT_TRUE(retry.status().ok()) << retry.status();
}

TEST_F(AgreementTest, NewAttemptEndsWaitOfOlderOne) {
  const auto ranks = Restarted();
  ASSERT_EQ(ResumedFrom(ranks[0], 0), "two");
  const auto waiting = Finish(ranks[0], 0, "two");
  const auto next = Launch("c", 2);
  EXPECT_EQ(ResumedFrom(next[0], 0), "two");
  EXPECT_EQ(waiting.reason(), "FENCED");
  EXPECT_EQ(Finish(ranks[1], 1, "two").reason(), "FENCED");
}

TEST_F(AgreementTest, RefusesAgreementOnOtherCheckpointThanResumedOne) {
  const auto ranks = Restarted();
  EXPECT_EQ(Finish(ranks[0], 0, "two").reason(), "NO_CHECKPOINT") << "it has not asked";
  ASSERT_EQ(ResumedFrom(ranks[0], 0), "two");
  EXPECT_EQ(Finish(ranks[0], 0, "one").reason(), "NO_CHECKPOINT");
  EXPECT_EQ(Finish(ranks[0], FinishOf(0, "nothing")).reason(), "NO_CHECKPOINT");
  EXPECT_EQ(Finish(ranks[0], 1, "two").reason(), "NOT_JOINED") << "another rank's";
  auto wrong = FinishOf(0, "two");
  wrong.mutable_damage()->set_chunk(-1);
  EXPECT_EQ(Finish(ranks[0], wrong).reason(), "INVALID_ARGUMENT");
  wrong.mutable_damage()->set_chunk(1);
  wrong.mutable_damage()->set_message(std::string(1001, 'x'));
  EXPECT_EQ(Finish(ranks[0], wrong).reason(), "INVALID_ARGUMENT");
  EXPECT_FALSE(Get("two").get().has_damage());
}

TEST_F(AgreementTest, MissingFileIsFoundAtOpenAndNextOlderCheckpointIsGiven) {
  const auto ranks = Restarted();
  disks_[1]->unreadable.insert(SequenceOf("two"));
  const auto resumed = Resume(ranks[0], 0);
  ASSERT_TRUE(resumed.status().ok()) << resumed.status();
  EXPECT_EQ(resumed.get().checkpoint().tag(), "one");
  ASSERT_EQ(resumed.get().passed_over_size(), 1);
  EXPECT_EQ(resumed.get().passed_over(0).damage().path(), "rank0.pt");
  EXPECT_EQ(resumed.get().passed_over(0).damage().expected(), "100");
  EXPECT_EQ(ResumedFrom(ranks[1], 1), "one");
  EXPECT_TRUE(disks_[1]->committed.at(SequenceOf("two")).damage.has_value());
}

TEST_F(AgreementTest, LatestForReadersIsNewestUndamagedCheckpoint) {
  const auto ranks = Restarted();
  EXPECT_EQ(Open(ranks[0], "latest").get().checkpoint().tag(), "two");
  ASSERT_TRUE(Report(ranks[0], "two").status().ok());
  const auto opened = Open(ranks[0], "latest");
  EXPECT_EQ(opened.get().checkpoint().tag(), "one");
  ASSERT_EQ(opened.get().passed_over_size(), 1);
  EXPECT_EQ(opened.get().passed_over(0).damage().message(), "rotten");
  EXPECT_EQ(Get("latest").get().tag(), "one");
  EXPECT_EQ(engine_->GetStatus(Caller{0, 0, true}).runs(0).latest().tag(), "one");
  const auto named = Open(ranks[0], "two");  // To save what can be saved.
  EXPECT_EQ(named.get().checkpoint().damage().message(), "rotten");
  EXPECT_EQ(Open(ranks[0], "two", true).reason(), "CHECKPOINT_DAMAGED");
  ASSERT_TRUE(FindDamage(ranks[1], 1, "two").status().ok());
  EXPECT_EQ(Get("two").get().damage().message(), "rotten") << "what was found first";
}

TEST_F(AgreementTest, ReaderOfLatestGetsNextOlderCheckpointWhenFileIsMissing) {
  const auto ranks = Restarted();
  disks_[1]->unreadable.insert(SequenceOf("two"));
  EXPECT_EQ(Open(ranks[0], "latest").get().checkpoint().tag(), "one");
  disks_[1]->unreadable.insert(SequenceOf("one"));
  EXPECT_EQ(Open(ranks[0], "one").reason(), "SHORT_FILE");
  EXPECT_EQ(Open(ranks[0], "latest").reason(), "CHECKPOINT_DAMAGED");
  EXPECT_EQ(Get("latest").reason(), "NO_CHECKPOINT");
  EXPECT_TRUE(Get("one").get().has_damage()) << "what is known of it is told";
}

TEST_F(AgreementTest, StrictRefusesOlderCheckpoint) {
  const auto ranks = Restarted();
  EXPECT_EQ(ResumeStrictly(ranks[0], 0).get().checkpoint().tag(), "two");
  ASSERT_TRUE(Report(ranks[0], "two").status().ok());
  const auto refused = ResumeStrictly(ranks[0], 0);
  EXPECT_EQ(refused.reason(), "CHECKPOINT_DAMAGED");
  EXPECT_THAT(std::string(refused.status().message()), AllOf(HasSubstr("two"), HasSubstr("rotten")));
  EXPECT_EQ(Open(ranks[0], "latest", true).reason(), "CHECKPOINT_DAMAGED");
  EXPECT_EQ(ResumedFrom(ranks[1], 1), "one");
}

TEST_F(AgreementTest, JobDoesNotStartFromNothingWhenAllCheckpointsAreDamaged) {
  const auto ranks = Restarted();
  ASSERT_TRUE(Report(ranks[0], "two").status().ok());
  ASSERT_TRUE(Report(ranks[0], "one").status().ok());
  const auto refused = Resume(ranks[0], 0);
  EXPECT_EQ(refused.reason(), "CHECKPOINT_DAMAGED");
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("2 checkpoints are damaged"));
  EXPECT_EQ(Open(ranks[0], "latest").reason(), "CHECKPOINT_DAMAGED");
}

TEST_F(AgreementTest, RepairedCheckpointIsOfferedAgain) {
  const auto ranks = Restarted();
  ASSERT_TRUE(Report(ranks[0], "two").status().ok());
  ASSERT_EQ(ResumedFrom(ranks[0], 0), "one");
  const auto cleared = Clear("two");
  ASSERT_TRUE(cleared.status().ok()) << cleared.status();
  EXPECT_FALSE(cleared.get().has_damage());
  EXPECT_EQ(Get("latest").get().tag(), "two");
  EXPECT_EQ(ResumedFrom(ranks[1], 1), "one") << "this attempt's answer stays";
  EXPECT_EQ(ResumedFrom(Launch("c", 2)[0], 0), "two");
  EXPECT_EQ(Clear("three").reason(), "NO_CHECKPOINT");
}

TEST_F(AgreementTest, IgnoresDamageReportAboutReplacedCheckpoint) {
  const auto ranks = Restarted();
  EXPECT_EQ(Report(ranks[0], "two", 1000).reason(), "NO_CHECKPOINT");
  EXPECT_EQ(Report(ranks[0], "two", SequenceOf("one")).reason(), "NO_CHECKPOINT");
  EXPECT_EQ(Get("latest").get().tag(), "two");
}

TEST_F(AgreementTest, DamagedCheckpointDoesNotCountForRetention) {
  const auto ranks = Launch("a", 1);
  for (int step : {1, 2, 3}) SaveAll(ranks, "s" + std::to_string(step), step, 2);
  EXPECT_THAT(Tags(), ElementsAre("s3", "s2"));
  ASSERT_TRUE(Report(ranks[0], "s3").status().ok());
  SaveAll(ranks, "s4", 4, 2);
  EXPECT_THAT(Tags(), ElementsAre("s4", "s3", "s2")) << "two that are whole, and what lies between them";
  SaveAll(ranks, "s5", 5, 2);
  EXPECT_THAT(Tags(), ElementsAre("s5", "s4"));
  EXPECT_THAT(disks_[1]->evicted, ElementsAre("s1", "s2", "s3"));
}

TEST_F(AgreementTest, DamagedCheckpointStaysWhenTooFewAreWhole) {
  const auto ranks = Launch("a", 1);
  for (int step : {1, 2}) SaveAll(ranks, "s" + std::to_string(step), step, 3);
  ASSERT_TRUE(Report(ranks[0], "s1").status().ok());
  SaveAll(ranks, "s3", 3, 3);
  EXPECT_THAT(Tags(), ElementsAre("s3", "s2", "s1"));
}

TEST_F(AgreementTest, CheckpointBeingEvictedIsNotOfferedInsteadOfDamagedOne) {
  const auto ranks = Launch("a", 1);
  SaveAll(ranks, "s1", 1, 1);
  ios_[1]->held.insert("Evict");
  SaveAll(ranks, "s2", 2, 1);
  ASSERT_TRUE(Report(ranks[0], "s2").status().ok());
  EXPECT_EQ(Get("latest").reason(), "NO_CHECKPOINT");
  ios_[1]->errors["Evict"] = ErrnoError(EIO, "renaming");
  ios_[1]->ReleaseHeld();
  ios_[1]->held.insert("Rescan");
  RunQueued();
  EXPECT_EQ(Get("latest").reason(), "NO_CHECKPOINT") << "it may be half removed";
  ios_[1]->ReleaseHeld();
  RunQueued();
  EXPECT_EQ(Get("latest").get().tag(), "s1") << "it was not";
}

// For example one that an earlier daemon left in flight and this daemon publishes.
TEST_F(AgreementTest, ResumedCheckpointStaysUntilAllRanksHaveReadItWhenNewerOneAppears) {
  auto ranks = Launch("a", 2);
  SaveAll(ranks, "one", 1, 1);
  for (SessionId session : ranks) engine_->SessionClosed(session, "ended");
  ranks = Launch("b", 2);
  ASSERT_EQ(ResumedFrom(ranks[0], 0), "one");
  storage::v1::ManifestSummary newer = disks_[1]->committed.begin()->second.summary;
  newer.set_tag("recovered");
  newer.set_sequence(1000);
  disks_[1]->manifests[1000] = disks_[1]->manifests.begin()->second;
  disks_[1]->manifests[1000].summary = newer;
  disks_[1]->committed[1000].summary = newer;
  Start(16);
  ranks = Launch("b", 2);
  ASSERT_EQ(ResumedFrom(ranks[0], 0), "one");
  engine_->SessionClosed(ranks[0], "killed");  // With its lease.
  RunQueued();
  EXPECT_THAT(disks_[1]->evicted, IsEmpty());
  const SessionId back = Trainer("b/0");
  ASSERT_TRUE(Join(back, 0, 2, "b").status().ok());
  Close(ranks[1], Resume(ranks[1], 1).get().lease());
  const auto first = Finish(back, 0, "one");
  EXPECT_THAT(disks_[1]->evicted, IsEmpty());
  ASSERT_TRUE(Finish(ranks[1], 1, "one").status().ok());
  EXPECT_TRUE(first.status().ok());
  EXPECT_THAT(disks_[1]->evicted, ElementsAre("one"));
}

TEST_F(AgreementTest, ResumedCheckpointIsEvictedAfterFirstCommitOfAttemptWithoutAgreement) {
  SaveAll(Launch("a", 1), "one", 1, 1);
  const auto ranks = Launch("b", 1);
  Close(ranks[0], Resume(ranks[0], 0).get().lease());
  SaveAll(ranks, "two", 2, 1);
  EXPECT_THAT(disks_[1]->evicted, ElementsAre("one"));
}

TEST_F(AgreementTest, DamageThatCannotBeRecordedIsStillKnownToThisDaemon) {
  const auto ranks = Restarted();
  ios_[1]->errors["SetDamage"] = ErrnoError(EIO, "writing");
  ASSERT_TRUE(Report(ranks[0], "two").status().ok());
  EXPECT_EQ(Get("latest").get().tag(), "one");
  EXPECT_THAT(observer_.warnings, Contains(HasSubstr("the next daemon may offer it again")));
}

TEST_F(AgreementTest, DiskErrorMarksNoCheckpointDamaged) {
  const auto ranks = Restarted();
  for (const int error : {EIO, ENODEV, ENXIO, ESTALE, EMFILE}) {
    ios_[1]->errors["OpenCheckpoint"] = ErrnoError(error, "opening");
    EXPECT_EQ(Resume(ranks[0], 0).reason(), ReasonOf(ErrnoError(error, "opening")));
    ios_[1]->errors.clear();
  }
  EXPECT_EQ(ResumedFrom(ranks[0], 0), "two");
  EXPECT_THAT(Resume(ranks[1], 1).get().passed_over(), IsEmpty());
}

}  // namespace
}  // namespace ckptd
