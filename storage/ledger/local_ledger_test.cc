#include "storage/ledger/local_ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "storage/base/errors.h"

namespace ckptd {
namespace {

class LocalLedgerTest : public ::testing::Test {
 protected:
  void Start(storage::v1::RunRecord record = {}, int64_t highest = 0) {
    ledger_ = std::make_unique<LocalLedger>(
        std::move(record), highest,
        [this](const storage::v1::RunRecord& what, absl::AnyInvocable<void(absl::Status)> done) {
          if (hold_saves_) {
            held_.push_back(std::move(done));
            return;
          }
          if (save_error_.ok()) saved_ = what;
          done(save_error_);
        });
  }
  void SetUp() override { Start(); }

  absl::StatusOr<int64_t> Join(int rank, const std::string& launch, const std::string& instance,
                               int world = 2, int64_t requested = 0) {
    Ledger::JoinSpec spec;
    spec.rank = rank;
    spec.world_size = world;
    spec.launch_id = launch;
    spec.instance = instance;
    spec.requested_attempt = requested;
    absl::StatusOr<int64_t> result = absl::UnknownError("no answer");
    ledger_->Join(spec, [&](absl::StatusOr<int64_t> answer) { result = std::move(answer); });
    return result;
  }
  absl::Status Activate(int64_t attempt) {
    absl::Status result = absl::UnknownError("no answer");
    ledger_->Activate(attempt, [&](absl::Status answer) { result = std::move(answer); });
    return result;
  }
  absl::StatusOr<Ledger::ResumeChoice> Resume(int64_t attempt, const std::string& tag, int64_t sequence) {
    absl::StatusOr<Ledger::ResumeChoice> result = absl::UnknownError("no answer");
    ledger_->DecideResume(attempt, {tag, sequence},
                          [&](absl::StatusOr<Ledger::ResumeChoice> answer) { result = std::move(answer); });
    return result;
  }

  absl::Status Agree(int64_t attempt, int64_t sequence) {
    absl::Status result = absl::UnknownError("no answer");
    ledger_->AgreeResume(attempt, sequence, [&](absl::Status answer) { result = std::move(answer); });
    return result;
  }

  std::optional<Ledger::ResumeChoice> Decided(int64_t attempt) {
    absl::StatusOr<std::optional<Ledger::ResumeChoice>> result = absl::UnknownError("no answer");
    ledger_->DecidedResume(attempt, [&](absl::StatusOr<std::optional<Ledger::ResumeChoice>> answer) {
      result = std::move(answer);
    });
    return result.value();
  }
  void Reject(int64_t attempt, int64_t sequence) {
    absl::Status result = absl::UnknownError("no answer");
    ledger_->RejectResume(attempt, sequence, [&](absl::Status answer) { result = std::move(answer); });
    EXPECT_TRUE(result.ok()) << result;
  }
  // As the watcher knows it.
  int64_t Active() {
    int64_t active = -1;
    ledger_->WatchActiveAttempt([&active](int64_t attempt) { active = attempt; });
    ledger_->WatchActiveAttempt([](int64_t) {});
    return active;
  }

  absl::StatusOr<int64_t> Admit(int64_t attempt) {
    absl::StatusOr<int64_t> result = absl::UnknownError("no answer");
    ledger_->Admit(attempt, [&](absl::StatusOr<int64_t> answer) { result = std::move(answer); });
    return result;
  }
  absl::StatusOr<int64_t> AdmitAdopted(int64_t above, int64_t below, int64_t more) {
    absl::StatusOr<int64_t> result = absl::UnknownError("no answer");
    ledger_->AdmitAdopted(above, below, more,
                          [&](absl::StatusOr<int64_t> answer) { result = std::move(answer); });
    return result;
  }

  // Answers the first of the held writes.
  void AnswerWrite(absl::Status saved) {
    ASSERT_FALSE(held_.empty());
    auto done = std::move(held_.front());
    held_.erase(held_.begin());
    done(std::move(saved));
  }

  std::unique_ptr<LocalLedger> ledger_;
  storage::v1::RunRecord saved_;
  absl::Status save_error_;
  bool hold_saves_ = false;  // The test answers the writes.
  std::vector<absl::AnyInvocable<void(absl::Status)>> held_;
};

TEST_F(LocalLedgerTest, NumbersLaunchesInTheirOrder) {
  EXPECT_EQ(*Join(0, "restart 7", "a"), 1);
  EXPECT_EQ(*Join(1, "restart 7", "b"), 1);
  EXPECT_EQ(*Join(0, "restart 2", "c"), 2);
}

TEST_F(LocalLedgerTest, NewAttemptsComeAfterThoseOfTheRoot) {
  ledger_->RaiseAttempt(7);
  EXPECT_EQ(*Join(0, "x", "a"), 8);
  ledger_->RaiseAttempt(7);
  ASSERT_TRUE(Activate(8).ok());
  Start(saved_);
  EXPECT_EQ(*Join(0, "x", "a"), 8);
  EXPECT_EQ(*Join(0, "y", "b"), 9);
}

TEST_F(LocalLedgerTest, LaunchOfALowerAttemptThanTheRootHasGoesOn) {
  ASSERT_EQ(*Join(0, "x", "a", /*world_size=*/2), 1);
  ledger_->RaiseAttempt(7);
  EXPECT_EQ(*Join(1, "x", "b", /*world_size=*/2), 1);
  EXPECT_TRUE(Activate(1).ok());
  ledger_->ProcessEnded("a");
  EXPECT_EQ(*Join(0, "x", "c", /*world_size=*/2), 8);
}

TEST_F(LocalLedgerTest, ProcessThatReconnectsKeepsItsAttempt) {
  EXPECT_EQ(*Join(0, "x", "a"), 1);
  ledger_->ProcessEnded("a");
  EXPECT_EQ(*Join(0, "x", "a"), 1);
}

TEST_F(LocalLedgerTest, RankOfALivingProcessIsTaken) {
  ASSERT_TRUE(Join(0, "x", "a").ok());
  EXPECT_EQ(ReasonOf(Join(0, "x", "b").status()), "RANK_TAKEN");
}

TEST_F(LocalLedgerTest, SuccessorOfAnEndedProcessStartsAnAttemptOnlyInTheNewestLaunch) {
  ASSERT_TRUE(Join(0, "x", "a").ok());
  ledger_->ProcessEnded("a");
  EXPECT_EQ(*Join(0, "x", "b"), 2);
  ASSERT_EQ(*Join(0, "y", "c"), 3);
  ledger_->ProcessEnded("b");
  EXPECT_EQ(ReasonOf(Join(0, "x", "d").status()), "FENCED");  // It can not fence off launch y,
  EXPECT_EQ(*Join(0, "x", "b"), 2);                           // and its predecessor, if it lives, goes on.
}

TEST_F(LocalLedgerTest, FencesEarlierAttemptsOnceALaterOneActsAlsoAfterARestart) {
  ASSERT_EQ(*Join(0, "x", "a"), 1);
  ASSERT_TRUE(Activate(1).ok());
  ASSERT_EQ(*Join(0, "y", "b"), 2);
  EXPECT_TRUE(Activate(1).ok());
  ASSERT_TRUE(Activate(2).ok());
  EXPECT_EQ(ReasonOf(Activate(1)), "FENCED");
  Start(saved_);
  EXPECT_EQ(ReasonOf(Activate(1)), "FENCED");
  EXPECT_EQ(*Join(0, "x", "a"), 1);
  EXPECT_EQ(*Join(0, "y", "b"), 2);
}

TEST_F(LocalLedgerTest, AttemptThatCouldNotBeStoredHasNotActed) {
  ASSERT_EQ(*Join(0, "x", "a"), 1);
  ASSERT_TRUE(Activate(1).ok());
  ASSERT_EQ(*Join(0, "y", "b"), 2);
  save_error_ = ErrnoError(ENOSPC, "writing the record");
  EXPECT_EQ(ReasonOf(Activate(2)), "NO_SPACE");
  save_error_ = absl::OkStatus();
  EXPECT_TRUE(Activate(1).ok());
}

TEST_F(LocalLedgerTest, TellsTheWatcherOfANewerAttemptBeforeActivateIsAnswered) {
  ASSERT_EQ(*Join(0, "old", "z"), 1);
  ASSERT_EQ(*Join(0, "x", "a"), 2);
  std::vector<std::string> events;
  ledger_->WatchActiveAttempt(
      [&](int64_t attempt) { events.push_back("active " + std::to_string(attempt)); });
  for (int64_t attempt : {2, 2, 1}) {
    ledger_->Activate(attempt,
                      [&](absl::Status answer) { events.push_back(answer.ok() ? "ok" : ReasonOf(answer)); });
  }
  EXPECT_EQ(events, (std::vector<std::string>{"active 0", "active 2", "ok", "ok", "FENCED"}));
}

TEST_F(LocalLedgerTest, NoRankActsBeforeItsAttemptIsStored) {
  ASSERT_EQ(*Join(0, "old", "z"), 1);
  ASSERT_EQ(*Join(0, "x", "a"), 2);
  ASSERT_EQ(*Join(1, "x", "b"), 2);
  hold_saves_ = true;
  std::vector<absl::Status> answers;
  for (int rank = 0; rank < 2; ++rank)
    ledger_->Activate(2, [&](absl::Status answer) { answers.push_back(std::move(answer)); });
  EXPECT_TRUE(answers.empty());  // A daemon that is killed now leaves nothing of attempt 2.
  EXPECT_EQ(Active(), 0);
  for (int write = 0; write < 2; ++write) AnswerWrite(ErrnoError(EIO, "writing"));
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_FALSE(answers[0].ok() || answers[1].ok());
  hold_saves_ = false;
  EXPECT_TRUE(Activate(1).ok());  // Attempt 1 is not fenced.
}

// Both attempts are known from an earlier daemon, and only their acting is new.
TEST_F(LocalLedgerTest, NoRankActsBeforeItsAttemptIsStoredAlsoAfterARestart) {
  ASSERT_EQ(*Join(0, "old", "z"), 1);
  ASSERT_EQ(*Join(0, "x", "a"), 2);
  ASSERT_EQ(*Join(1, "x", "b"), 2);
  ASSERT_TRUE(Activate(1).ok());
  Start(saved_);
  hold_saves_ = true;
  int answers = 0;
  for (int rank = 0; rank < 2; ++rank) ledger_->Activate(2, [&](absl::Status) { ++answers; });
  EXPECT_EQ(answers, 0);
}

// The write of the first one, and one write for all that have come since.
TEST_F(LocalLedgerTest, AnyNumberOfRanksThatActTogetherWaitForTwoWrites) {
  constexpr int kRanks = 64;
  for (int rank = 0; rank < kRanks; ++rank) {
    ASSERT_EQ(*Join(rank, "x", "process " + std::to_string(rank), kRanks), 1);
  }
  hold_saves_ = true;
  int answers = 0;
  for (int rank = 0; rank < kRanks; ++rank) {
    ledger_->Activate(1, [&](absl::Status answer) { answers += answer.ok(); });
  }
  AnswerWrite(absl::OkStatus());
  EXPECT_LT(answers, kRanks);
  AnswerWrite(absl::OkStatus());
  EXPECT_EQ(answers, kRanks);
  EXPECT_TRUE(held_.empty());
}

TEST_F(LocalLedgerTest, AttemptOvertakenWhileItIsStoredIsFenced) {
  ASSERT_EQ(*Join(0, "x", "a"), 1);
  ASSERT_EQ(*Join(0, "y", "b"), 2);
  hold_saves_ = true;
  std::vector<absl::Status> answers(3);
  for (int64_t attempt : {2, 1})
    ledger_->Activate(attempt, [&, attempt](absl::Status answer) { answers[attempt] = std::move(answer); });
  for (int write = 0; write < 2; ++write) AnswerWrite(absl::OkStatus());
  EXPECT_TRUE(answers[2].ok());
  EXPECT_EQ(ReasonOf(answers[1]), "FENCED");
}

TEST_F(LocalLedgerTest, AttemptThatCouldNotBeStoredIsNotStoredByALaterWrite) {
  ASSERT_EQ(*Join(0, "x", "a"), 1);
  ASSERT_TRUE(Activate(1).ok());
  ASSERT_EQ(*Join(0, "y", "b"), 2);
  save_error_ = ErrnoError(ENOSPC, "writing the record");
  ASSERT_FALSE(Activate(2).ok());
  save_error_ = absl::OkStatus();
  ledger_->RecordOutcome({}, [](absl::Status) {});
  Start(saved_);
  EXPECT_TRUE(Activate(1).ok());
}

TEST_F(LocalLedgerTest, FencedAttemptGetsNoSequenceAndNoResumeChoice) {
  ASSERT_EQ(*Join(0, "x", "a"), 1);
  ASSERT_EQ(*Join(0, "y", "b"), 2);
  ASSERT_TRUE(Activate(1).ok());
  hold_saves_ = true;
  ledger_->Activate(2, [](absl::Status) {});
  std::string resumed;
  ledger_->DecideResume(1, {"step_1", 1}, [&](absl::StatusOr<Ledger::ResumeChoice> choice) {
    resumed = choice.ok() ? choice->tag : ReasonOf(choice.status());
  });
  for (int write = 0; write < 2; ++write) AnswerWrite(absl::OkStatus());
  EXPECT_EQ(resumed, "FENCED") << "overtaken while it was written down";
  EXPECT_EQ(ReasonOf(Resume(1, "step_1", 1).status()), "FENCED");
  std::string admitted;
  ledger_->Admit(1, [&](absl::StatusOr<int64_t> sequence) { admitted = ReasonOf(sequence.status()); });
  EXPECT_EQ(admitted, "FENCED");
}

TEST_F(LocalLedgerTest, ProcessThatHasActedIsKnownAfterARestart) {
  ASSERT_EQ(*Join(0, "x", "a"), 1);
  ASSERT_TRUE(Activate(1).ok());
  ASSERT_EQ(*Join(1, "x", "b"), 1);
  ASSERT_TRUE(Activate(1).ok());
  ASSERT_EQ(saved_.launches_size(), 1);
  EXPECT_EQ(saved_.launches(0).instances().at(1), "b");
}

TEST_F(LocalLedgerTest, RanksThatAskTogetherGetOneAnswerAlsoWhenTheFirstWriteFails) {
  ASSERT_EQ(*Join(0, "x", "a"), 1);
  ASSERT_EQ(*Join(1, "x", "b"), 1);
  ASSERT_TRUE(Activate(1).ok());
  hold_saves_ = true;
  std::vector<std::string> told;
  auto ask = [&](const std::string& newest, int64_t sequence) {
    ledger_->DecideResume(1, {newest, sequence}, [&](absl::StatusOr<Ledger::ResumeChoice> choice) {
      if (choice.ok()) told.push_back(choice->tag);
    });
  };
  ask("step_1", 1);
  ask("step_1", 1);
  AnswerWrite(ErrnoError(EIO, "writing"));
  ask("step_2", 2);  // Committed meanwhile.
  AnswerWrite(absl::OkStatus());
  EXPECT_EQ(told, std::vector<std::string>{"step_2"});
}

TEST_F(LocalLedgerTest, WorldSizeIsFixedWithinAnAttempt) {
  ASSERT_TRUE(Join(0, "x", "a", 2).ok());
  EXPECT_EQ(ReasonOf(Join(1, "x", "b", 3).status()), "WORLD_SIZE_MISMATCH");
  EXPECT_TRUE(Join(0, "y", "c", 3).ok());
}

TEST_F(LocalLedgerTest, RefusesARequestedAttemptOfAnotherLaunch) {
  EXPECT_EQ(ReasonOf(Join(0, "x", "a", 2, 5).status()), "FENCED");
  EXPECT_TRUE(Join(0, "x", "a", 2, 1).ok());
}

TEST_F(LocalLedgerTest, SequencesContinueAboveAllThatWereFound) {
  Start({}, 41);
  ASSERT_TRUE(Join(0, "x", "a").ok());
  ASSERT_TRUE(Activate(1).ok());
  int64_t sequence = 0;
  ledger_->Admit(1, [&](absl::StatusOr<int64_t> answer) { sequence = *answer; });
  EXPECT_EQ(sequence, 42);
}

TEST_F(LocalLedgerTest, ResumeIsDecidedOnceAndSurvivesARestart) {
  ASSERT_TRUE(Join(0, "x", "a").ok());
  ASSERT_TRUE(Activate(1).ok());
  EXPECT_EQ(Resume(1, "step_5", 5)->tag, "step_5");
  EXPECT_EQ(Resume(1, "step_9", 9)->tag, "step_5");
  Start(saved_);
  EXPECT_EQ(Resume(1, "step_9", 9)->tag, "step_5");
}

TEST_F(LocalLedgerTest, HistoryIsBounded) {
  for (int i = 0; i < 200; ++i) {
    storage::v1::Outcome outcome;
    outcome.set_sequence(i);
    ledger_->RecordOutcome(outcome, [](absl::Status) {});
  }
  EXPECT_EQ(saved_.outcomes_size(), 64);
  EXPECT_EQ(saved_.outcomes(63).sequence(), 199);
}

TEST_F(LocalLedgerTest, DecidesAgainWhenTheResumeCheckpointIsDamaged) {
  const int64_t attempt = *Join(0, "a", "a0");
  ASSERT_TRUE(Activate(attempt).ok());
  ASSERT_EQ(Resume(attempt, "two", 2)->sequence, 2);
  Reject(attempt, 1);  // Not the decided one: no effect.
  EXPECT_EQ(Resume(attempt, "one", 1)->sequence, 2);
  Reject(attempt, 2);
  EXPECT_FALSE(Decided(attempt).has_value());
  EXPECT_EQ(Resume(attempt, "one", 1)->sequence, 1);
  Start(saved_);
  EXPECT_EQ(Decided(attempt)->sequence, 1);
}

TEST_F(LocalLedgerTest, StoresAnAgreementBeforeTheAnswerAndDropsItWithTheDecision) {
  const int64_t attempt = *Join(0, "a", "a0");
  ASSERT_TRUE(Activate(attempt).ok());
  ASSERT_TRUE(Resume(attempt, "two", 2).ok());
  EXPECT_EQ(ReasonOf(Agree(attempt, 1)), "NO_CHECKPOINT");
  EXPECT_FALSE(ledger_->record().launches(0).resume_agreed());
  save_error_ = ErrnoError(EIO, "writing");
  EXPECT_EQ(ReasonOf(Agree(attempt, 2)), "IO_ERROR");
  EXPECT_FALSE(Decided(attempt)->agreed);
  save_error_ = absl::OkStatus();
  ASSERT_TRUE(Agree(attempt, 2).ok());
  EXPECT_TRUE(Decided(attempt)->agreed);
  Start(saved_);
  EXPECT_TRUE(Decided(attempt)->agreed);
  Reject(attempt, 2);
  ASSERT_TRUE(Resume(attempt, "one", 1).ok());
  EXPECT_FALSE(Decided(attempt)->agreed);
  Start(saved_);
  EXPECT_FALSE(Decided(attempt)->agreed);
}

TEST_F(LocalLedgerTest, NextWriteDoesNotStoreAnAgreementThatFailed) {
  const int64_t attempt = *Join(0, "a", "a0");
  ASSERT_TRUE(Activate(attempt).ok());
  ASSERT_TRUE(Resume(attempt, "two", 2).ok());
  save_error_ = ErrnoError(EIO, "writing");
  ASSERT_EQ(ReasonOf(Agree(attempt, 2)), "IO_ERROR");
  save_error_ = absl::OkStatus();
  ledger_->RecordOutcome({}, [](absl::Status) {});
  EXPECT_FALSE(saved_.launches(0).resume_agreed());
  Start(saved_);
  EXPECT_FALSE(Decided(attempt)->agreed);
}

TEST_F(LocalLedgerTest, RefusesAnAgreementOnARejectedCheckpoint) {
  const int64_t attempt = *Join(0, "a", "a0");
  ASSERT_TRUE(Activate(attempt).ok());
  ASSERT_TRUE(Resume(attempt, "two", 2).ok());
  hold_saves_ = true;
  absl::Status agreed = absl::UnknownError("no answer");
  ledger_->AgreeResume(attempt, 2, [&](absl::Status answer) { agreed = std::move(answer); });
  Reject(attempt, 2);
  AnswerWrite(absl::OkStatus());
  EXPECT_EQ(ReasonOf(agreed), "NO_CHECKPOINT");
}

// ---- a launch with another state in the same root

TEST_F(LocalLedgerTest, LaunchThatCouldNotResumeSetsTheCheckpointsBeforeItAside) {
  const int64_t attempt = *Join(0, "a", "a0");
  ASSERT_TRUE(Activate(attempt).ok());
  ASSERT_TRUE(Resume(attempt, "two", 2).ok());
  ledger_->Committed(attempt);
  EXPECT_EQ(ledger_->record().retained_through(), 0) << "nothing has failed";
  ledger_->ResumeFailed(attempt, 1);
  ledger_->Committed(attempt);
  EXPECT_EQ(ledger_->record().retained_through(), 0) << "another checkpoint has failed";
  ledger_->ResumeFailed(attempt, 2);
  EXPECT_EQ(ledger_->record().retained_through(), 0) << "it has not saved yet";
  ledger_->Committed(attempt);
  EXPECT_EQ(ledger_->record().retained_through(), 2);
}

TEST_F(LocalLedgerTest, LaunchThatCouldNotResumeSetsThemAsideAlsoIfThatCheckpointIsDamaged) {
  const int64_t attempt = *Join(0, "a", "a0");
  ASSERT_TRUE(Activate(attempt).ok());
  ASSERT_TRUE(Resume(attempt, "two", 2).ok());
  ledger_->ResumeFailed(attempt, 2);
  Reject(attempt, 2);
  ledger_->Committed(attempt);
  EXPECT_EQ(ledger_->record().retained_through(), 2);
}

TEST_F(LocalLedgerTest, LaunchThatResumesFromAnotherCheckpointSetsNothingAside) {
  const int64_t attempt = *Join(0, "a", "a0");
  ASSERT_TRUE(Activate(attempt).ok());
  ASSERT_TRUE(Resume(attempt, "two", 2).ok());
  ledger_->ResumeFailed(attempt, 2);
  Reject(attempt, 2);
  ASSERT_TRUE(Resume(attempt, "one", 1).ok());
  ledger_->Committed(attempt);
  EXPECT_EQ(ledger_->record().retained_through(), 0);
}

TEST_F(LocalLedgerTest, LaunchThatResumesAtTheSecondTrySetsNothingAside) {
  const int64_t attempt = *Join(0, "a", "a0");
  ASSERT_TRUE(Activate(attempt).ok());
  ASSERT_TRUE(Resume(attempt, "two", 2).ok());
  ledger_->ResumeFailed(attempt, 2);
  ASSERT_TRUE(Agree(attempt, 2).ok());
  ledger_->Committed(attempt);
  EXPECT_EQ(ledger_->record().retained_through(), 0);
}

TEST_F(LocalLedgerTest, TakeoverCountsTheCheckpointsOfTheLaunchesBefore) {
  const int64_t attempt = *Join(0, "a", "a0");
  ASSERT_TRUE(Activate(attempt).ok());
  ASSERT_TRUE(Resume(attempt, "two", 2).ok());
  ledger_->ResumeFailed(attempt, 2);
  ledger_->Committed(attempt);
  Ledger::JoinSpec spec;
  spec.world_size = 1;
  spec.launch_id = "b";
  spec.instance = "b0";
  spec.takeover = true;
  int64_t second = 0;
  ledger_->Join(spec, [&second](absl::StatusOr<int64_t> joined) { second = *joined; });
  EXPECT_EQ(ledger_->record().retained_through(), 0);
  ledger_->Committed(attempt);
  EXPECT_EQ(ledger_->record().retained_through(), 0) << "also if a save of the launch before ends later";
  ASSERT_TRUE(Activate(second).ok());
  ASSERT_TRUE(Resume(second, "two", 2).ok());
  ledger_->ResumeFailed(second, 2);
  ledger_->Committed(second);
  EXPECT_EQ(ledger_->record().retained_through(), 0);
}

// ---- checkpoints of another program

TEST_F(LocalLedgerTest, NoSaveGetsAReservedSequence) {
  storage::v1::RunRecord record;
  record.set_reserved_sequences(1000);
  Start(std::move(record));
  ASSERT_EQ(*Join(0, "a", "p0"), 1);
  EXPECT_EQ(*Admit(1), 1001);
  Start(ledger_->record());
  EXPECT_EQ(*Admit(1), 1002);
}

TEST_F(LocalLedgerTest, AdoptedSequenceIsInOrderAndStoredBeforeTheAnswer) {
  storage::v1::RunRecord record;
  record.set_reserved_sequences(1000);
  Start(std::move(record));
  // The first two of three below a save, then the third, then one that comes in between, and one below all.
  const int64_t first = *AdmitAdopted(0, 1001, 2);
  const int64_t second = *AdmitAdopted(first, 1001, 1);
  const int64_t third = *AdmitAdopted(second, 1001, 0);
  const int64_t between = *AdmitAdopted(first, second, 0);
  const int64_t below = *AdmitAdopted(0, first, 0);
  EXPECT_LT(0, below);
  EXPECT_LT(below, first);
  EXPECT_LT(first, between);
  EXPECT_LT(between, second);
  EXPECT_LT(second, third);
  EXPECT_LT(third, 1001);
  EXPECT_THAT(saved_.adopted_sequences(), ::testing::ElementsAre(first, second, third, between, below));
  hold_saves_ = true;
  bool answered = false;
  ledger_->AdmitAdopted(third, 1001, 0, [&](absl::StatusOr<int64_t>) { answered = true; });
  EXPECT_FALSE(answered);
  AnswerWrite(absl::OkStatus());
  EXPECT_TRUE(answered);
}

TEST_F(LocalLedgerTest, YoungestAdoptedOneIsAboveAllAndSavesFollowIt) {
  ASSERT_EQ(*Join(0, "a", "p0"), 1);
  EXPECT_EQ(*Admit(1), 1);
  EXPECT_EQ(*AdmitAdopted(1, 0, 0), 2);
  EXPECT_EQ(saved_.last_sequence(), 2);
  EXPECT_EQ(*Admit(1), 3);
}

TEST_F(LocalLedgerTest, YoungestAdoptedOneLeavesRoomAroundItBeforeTheFirstSave) {
  storage::v1::RunRecord record;
  record.set_reserved_sequences(1000);
  Start(std::move(record));
  const int64_t first = *AdmitAdopted(0, 0, 1);
  const int64_t second = *AdmitAdopted(first, 0, 0);
  const int64_t between = *AdmitAdopted(first, second, 0);
  EXPECT_LT(first, between);
  EXPECT_LT(between, second);
  const int64_t above = *AdmitAdopted(second, 0, 0);
  EXPECT_LT(second, above);
  EXPECT_LE(above, 1000);
  ASSERT_EQ(*Join(0, "a", "p0"), 1);
  EXPECT_EQ(*Admit(1), 1001);
  EXPECT_EQ(*AdmitAdopted(1001, 0, 0), 1002) << "above what was saved";
}

TEST_F(LocalLedgerTest, YoungestIsAboveTheReservedWhenTheseAreFull) {
  storage::v1::RunRecord record;
  record.set_reserved_sequences(2);
  Start(std::move(record));
  EXPECT_EQ(*AdmitAdopted(2, 0, 0), 3);
}

TEST_F(LocalLedgerTest, NeverGivesASequenceTwice) {
  storage::v1::RunRecord record;
  record.set_reserved_sequences(3);
  Start(std::move(record));
  std::set<int64_t> given;
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(given.insert(*AdmitAdopted(0, 4, 0)).second);
  EXPECT_EQ(ReasonOf(AdmitAdopted(0, 4, 0).status()), "ADOPT_ORDER");
  Start(ledger_->record());
  EXPECT_EQ(ReasonOf(AdmitAdopted(0, 4, 0).status()), "ADOPT_ORDER");
}

TEST_F(LocalLedgerTest, RefusesAdoptionBelowExistingOnesWithoutReservedSequences) {
  ASSERT_EQ(*Join(0, "a", "p0"), 1);
  EXPECT_EQ(*Admit(1), 1);
  EXPECT_EQ(ReasonOf(AdmitAdopted(0, 1, 0).status()), "ADOPT_ORDER");
  EXPECT_EQ(ReasonOf(AdmitAdopted(0, 100, 0).status()), "ADOPT_ORDER") << "2 to 99 may be saves that failed";
}

TEST_F(LocalLedgerTest, SequenceThatCannotBeStoredIsNotGiven) {
  save_error_ = ErrnoError(EIO, "writing");
  EXPECT_EQ(ReasonOf(AdmitAdopted(0, 0, 0).status()), "IO_ERROR");
}

// ---- another job, the same process

class SharedRootTest : public LocalLedgerTest {
 protected:
  absl::StatusOr<int64_t> JoinAs(const std::string& launch, const std::string& instance,
                                 const std::string& job, bool takeover = false, int rank = 0,
                                 const std::string& process = "") {
    Ledger::JoinSpec spec{rank, 2, launch, instance, 0, "", process, job, takeover};
    absl::StatusOr<int64_t> result = absl::UnknownError("no answer");
    ledger_->Join(spec, [&](absl::StatusOr<int64_t> answer) { result = std::move(answer); });
    return result;
  }
};

TEST_F(SharedRootTest, RefusesLaunchOfAnotherJobWhileTheFirstRuns) {
  ASSERT_EQ(*JoinAs("one", "a", "job 1"), 1);
  ASSERT_EQ(*JoinAs("one", "b", "job 1", false, 1), 1);
  const absl::Status refused = JoinAs("two", "c", "job 2").status();
  EXPECT_EQ(ReasonOf(refused), "RUN_IN_USE");
  EXPECT_THAT(std::string(refused.message()), ::testing::HasSubstr("attempt 1 (ranks 0,1) of another job"));
  EXPECT_EQ(*JoinAs("two", "c", "job 2", /*takeover=*/true), 2);
}

TEST_F(SharedRootTest, LaunchOfTheSameJobNeedsNoTakeover) {
  ASSERT_EQ(*JoinAs("one", "a", "job 1"), 1);
  EXPECT_EQ(*JoinAs("two", "c", "job 1"), 2);
}

TEST_F(SharedRootTest, HungRankOfALaunchThatHasEndedIsFencedOffWithoutTakeover) {
  ASSERT_EQ(*JoinAs("one", "a", "job 1"), 1);
  ASSERT_EQ(*JoinAs("one", "hung", "job 1", false, 1), 1);
  ledger_->ProcessEnded("a");
  EXPECT_EQ(*JoinAs("two", "c", "job 2"), 2);
}

TEST_F(SharedRootTest, LaunchThatActsIsInUseAlsoWhenAYoungerOneHasEnded) {
  ASSERT_EQ(*JoinAs("one", "a", "job 1"), 1);
  ASSERT_TRUE(Activate(1).ok());
  ASSERT_EQ(*JoinAs("two", "b", "job 2", /*takeover=*/true), 2);
  ledger_->ProcessEnded("b");
  EXPECT_EQ(ReasonOf(JoinAs("three", "c", "job 3").status()), "RUN_IN_USE");
}

TEST_F(SharedRootTest, LaunchThatIsFencedOffIsNotInUse) {
  ASSERT_EQ(*JoinAs("one", "a", "job 1"), 1);
  ASSERT_EQ(*JoinAs("two", "b", "job 2", /*takeover=*/true), 2);
  ASSERT_TRUE(Activate(2).ok());
  ledger_->ProcessEnded("b");
  EXPECT_EQ(*JoinAs("three", "c", "job 3"), 3);
}

TEST_F(SharedRootTest, ClientThatNamesNoJobIsNotRefused) {
  ASSERT_EQ(*JoinAs("one", "a", "job 1"), 1);
  EXPECT_EQ(*JoinAs("two", "b", ""), 2);
}

TEST_F(SharedRootTest, NewClientOfTheSameProcessTakesItsRankOverAsTheNextAttempt) {
  ASSERT_EQ(*JoinAs("one", "a", "", false, 0, "process 1"), 1);
  EXPECT_EQ(*JoinAs("one", "b", "", false, 0, "process 1"), 2);
  EXPECT_EQ(ReasonOf(JoinAs("one", "c", "", false, 0, "process 2").status()), "RANK_TAKEN");
  EXPECT_EQ(ReasonOf(JoinAs("one", "d", "").status()), "RANK_TAKEN");
}

}  // namespace
}  // namespace ckptd
