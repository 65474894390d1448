// SaveTracker, MemberFiles and Publisher together: from Seal to the end of a save, on a disk in memory.
#include "daemon/engine/save/save_tracker.h"

#include "daemon/engine/save/member_files.h"
#include "daemon/engine/save/publisher.h"
#include "daemon/engine/save/save_driver.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"
#include "tests/testing/engine_class_fixture.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class SaveTrackerTest : public ClassTest {
 protected:
  SaveTrackerTest() { publish_ = std::bind_front(&Publisher::Publish, &publisher_); }
  Run* AddRun(uid_t uid) {
    Run* run = ClassTest::AddRun(uid);
    driver_.Start(run);
    return run;
  }
  // A save with memory whose ranks may seal.
  Save* Admitted(Run* run, int world_size) {
    Save* save = AddSave(run, world_size, 100, SavePhase::kAdmitted);
    save->reservation = *pool_->Reserve({{0, world_size}});
    save->admission_deadline = save->commit_deadline = clock_.Now() + std::chrono::seconds(60);
    for (auto& [rank, part] : save->parts) part.granted = true;
    files_.Open(save);
    return save;
  }
  std::string Seal(Save* save, int rank, const std::string& suspect = "") {
    std::string reason = "no answer";
    v1::SealRequest request;
    request.set_suspect(suspect);
    Member member{
        .session = SessionId(1 + rank), .instance = "", .rank = rank, .world_size = save->world_size};
    tracker_.Seal(save, member, request,
                  [&reason](absl::StatusOr<v1::SealResponse> answer) { reason = ReasonOf(answer.status()); });
    return reason;
  }
  std::shared_ptr<v1::Level> Wait(Save* save, v1::Level level) {
    auto reached = std::make_shared<v1::Level>(v1::LEVEL_UNSPECIFIED);
    Waiter waiter;
    waiter.level = level;
    waiter.deadline = clock_.Now() + std::chrono::seconds(1000);
    waiter.reply = [reached](absl::StatusOr<v1::WaitResponse> answer) {
      *reached = answer->checkpoint().level();
    };
    tracker_.Wait(save, std::move(waiter));
    return reached;
  }
  static v1::Checkpoint Describe(const Save& save) {
    v1::Checkpoint checkpoint;
    checkpoint.set_tag(save.key.tag);
    checkpoint.set_level(save.level());
    checkpoint.mutable_error()->set_reason(ReasonOf(save.error));
    return checkpoint;
  }

  SaveDriver::Hooks DriverHooks() {
    SaveDriver::Hooks hooks;
    hooks.sealed = [this](Save* save) { tracker_.OnSealedEverywhere(save); };
    hooks.committed = [this](Save* save, CommittedCheckpoint, PointerFiles) {
      tracker_.End(save, v1::COMMITTED);
    };
    hooks.indeterminate = [this](Save* save, const absl::Status&) { tracker_.End(save, v1::INDETERMINATE); };
    hooks.fail = [this](Save* save, const absl::Status& why) { tracker_.Fail(save, why); };
    hooks.ended = [this](Save* save, const absl::Status& why) { tracker_.OnEnded(save, why); };
    hooks.continue_failing = [this](Save* save) { tracker_.ContinueFailing(save); };
    return hooks;
  }

  std::vector<std::string> steps_;  // Hooks, in the order of their calls.
  std::vector<storage::v1::Outcome> outcomes_;
  ExpectedSizes sizes_;
  RootScanner scanner_{&clock_,
                       this,
                       {.written_bytes = [](const Run&) { return int64_t{0}; },
                        .load = [](Run* run, RootSnapshot, int64_t) { run->read_only = false; },
                        .usable =
                            [this](Run* run) {
                              files_.OnScanned(run);
                              publisher_.OnScanned(run);
                            }}};
  TrashCollector trash_{Duration::zero(),
                        &clock_,
                        this,
                        {.has_leases = [](const Run&) { return false; },
                         .room_changed = [](Run*) {},
                         .emptied = [](Run*, bool) {}}};
  EndedSaves ended_saves_{
      {.describe_save = [](const Save& save) { return Describe(save); },
       .describe_committed = [](const Run&, const CommittedCheckpoint&) { return v1::Checkpoint(); }}};
  WriteStreams streams_{&saves_};
  MemberFiles files_{&clock_,
                     &saves_,
                     &sizes_,
                     &scanner_,
                     8 << 20,
                     {.fail = [this](Save* save, absl::Status error) { tracker_.Fail(save, error); },
                      .continue_failing = [this](Save* save) { tracker_.ContinueFailing(save); }}};
  Publisher publisher_{&clock_, this, &saves_, &scanner_, 8 << 20};
  SaveDriver driver_{&clock_, this, &saves_, DriverHooks()};
  SaveTracker tracker_{
      &clock_,
      pool_.get(),
      this,
      &saves_,
      &ended_saves_,
      &streams_,
      &sizes_,
      &scanner_,
      &trash_,
      {.describe = [](const Save& save, v1::View) { return Describe(save); },
       .changed = [](const Save&) {},
       .all_sealed = [this](Save*) { steps_.push_back("all sealed"); },
       .sealed_here = [this](Save* save) { driver_.OnSealedHere(save); },
       .give_up = [this](Save* save, const absl::Status& why) { driver_.OnGivingUp(save, why); },
       .part_sealed = [this](Save* save) { files_.WriteSealedParts(save); },
       .failing = [this](Save*) { steps_.push_back("failing"); },
       .releasing_memory = [this](Save*) { steps_.push_back("releasing memory"); },
       .memory_released = [this](const Save&) { steps_.push_back("memory released"); },
       .record = [this](Run*, const storage::v1::Outcome& outcome) { outcomes_.push_back(outcome); },
       .ended =
           [this](Save* save) {
             steps_.push_back("ended");
             publisher_.OnSaveEnded(*save);
           }}};
};

TEST_F(SaveTrackerTest, OneSuspectPartMakesTheCheckpointSuspectAndDropsItsPointers) {
  Run* run = AddRun(1000);
  Save* save = Admitted(run, 3);
  save->pointers = {{"latest", "step_1"}};
  EXPECT_EQ(Seal(save, 0), "");
  EXPECT_EQ(SummaryOf(*save, 4096).pointers_size(), 1);
  EXPECT_EQ(Seal(save, 1, "NaN in w"), "");
  EXPECT_EQ(Seal(save, 2, "NaN in b"), "");
  EXPECT_EQ(SummaryOf(*save, 4096).suspect(), "NaN in w") << "the first one's words count";
  EXPECT_EQ(SummaryOf(*save, 4096).pointers_size(), 0);
}

TEST_F(SaveTrackerTest, RefusesToSealWithTooManyWords) {
  Save* save = Admitted(AddRun(1000), 1);
  EXPECT_EQ(Seal(save, 0, std::string(301, 'x')), reason::kInvalidArgument);
  EXPECT_FALSE(save->parts.at(0).sealed);
  EXPECT_EQ(Seal(save, 0, std::string(300, 'x')), "");
}

TEST_F(SaveTrackerTest, CommitsWhenAllRanksHaveSealed) {
  Save* save = Admitted(AddRun(1000), 2);
  const auto sealed = Wait(save, v1::SEALED), committed = Wait(save, v1::COMMITTED);
  RunCallbacks();
  EXPECT_EQ(Seal(save, 0), "");
  EXPECT_EQ(*sealed, v1::LEVEL_UNSPECIFIED);
  EXPECT_EQ(Seal(save, 1), "");
  EXPECT_EQ(*sealed, v1::SEALED);
  RunCallbacks();
  EXPECT_EQ(*committed, v1::COMMITTED);
  EXPECT_THAT(steps_, ElementsAre("all sealed", "releasing memory", "memory released", "ended"));
  ASSERT_THAT(outcomes_, SizeIs(1));
  EXPECT_EQ(outcomes_[0].level(), v1::COMMITTED);
  EXPECT_THAT(saves_.all(), IsEmpty());
}

TEST_F(SaveTrackerTest, ARetryOfSealIsAnsweredAndWritesNothingTwice) {
  Save* save = Admitted(AddRun(1000), 1);
  EXPECT_EQ(Seal(save, 0), "");
  EXPECT_EQ(Seal(save, 0), "");
  RunCallbacks();
  EXPECT_THAT(outcomes_, SizeIs(1));
}

TEST_F(SaveTrackerTest, AnUnwrittenSaveIsReportedFailedAtOnce) {
  Save* save = Admitted(AddRun(1000), 2);
  const auto committed = Wait(save, v1::COMMITTED);
  EXPECT_TRUE(tracker_.Abort(save, {0}, "enough").ok());
  EXPECT_EQ(*committed, v1::FAILED);
  EXPECT_EQ(ended_saves_.failures(*save->run).back().error().reason(), "SAVE_ABORTED");
  RunCallbacks();
  EXPECT_THAT(steps_, ElementsAre("failing", "releasing memory", "memory released", "ended"));
}

TEST_F(SaveTrackerTest, ASaveThatRecoveryCouldPublishIsReportedWhenItsDirectoryIsGone) {
  Run* run = AddRun(1000);
  Save* save = Admitted(run, 1);
  RunCallbacks();
  ios_[run]->hold_writes = true;
  EXPECT_EQ(Seal(save, 0), "");
  const auto committed = Wait(save, v1::COMMITTED);
  tracker_.Fail(save, absl::AbortedError("test"));
  RunCallbacks();
  EXPECT_EQ(*committed, v1::LEVEL_UNSPECIFIED);
  EXPECT_NE(save->reservation, 0) << "the write still reads the memory";
  ios_[run]->ReleaseHeld();
  RunCallbacks();
  EXPECT_EQ(*committed, v1::FAILED);
  EXPECT_THAT(ios_[run]->inflight(), IsEmpty());
}

TEST_F(SaveTrackerTest, IsIndeterminateIfACompleteSaveCannotBeMovedAway) {
  Run* run = AddRun(1000);
  Save* save = Admitted(run, 1);
  RunCallbacks();
  ios_[run]->publish_result = {.outcome = PublishOutcome::kFailed, .status = absl::InternalError("broken")};
  ios_[run]->discard_error = absl::InternalError("broken");
  EXPECT_EQ(Seal(save, 0), "");
  const auto committed = Wait(save, v1::COMMITTED);
  RunCallbacks();
  EXPECT_EQ(*committed, v1::INDETERMINATE);
}

TEST_F(SaveTrackerTest, RetriesAPublishThatChangedNothing) {
  Run* run = AddRun(1000);
  Save* save = Admitted(run, 1);
  ios_[run]->publish_result = {
      .outcome = PublishOutcome::kFailed, .status = absl::UnavailableError("busy"), .retryable = true};
  EXPECT_EQ(Seal(save, 0), "");
  const auto committed = Wait(save, v1::COMMITTED);
  RunCallbacks();
  EXPECT_EQ(ios_[run]->calls["Publish"], 1);
  ios_[run]->publish_result = {PublishOutcome::kCommitted, absl::OkStatus()};
  publisher_.OnTick(clock_.Now());
  RunCallbacks();
  EXPECT_EQ(ios_[run]->calls["Publish"], 1) << "not before the pause is over";
  clock_.Advance(std::chrono::seconds(1));
  publisher_.OnTick(clock_.Now());
  RunCallbacks();
  EXPECT_EQ(*committed, v1::COMMITTED);
}

TEST_F(SaveTrackerTest, AWrittenSaveCanBeAbortedUntilItIsBeingPublished) {
  Run* run = AddRun(1000);
  Save* save = Admitted(run, 1);
  run->scanning = true;  // So that it waits.
  EXPECT_EQ(Seal(save, 0), "");
  RunCallbacks();
  EXPECT_EQ(save->phase(), SavePhase::kWritten);
  const auto committed = Wait(save, v1::COMMITTED);
  EXPECT_TRUE(tracker_.Abort(save, {0}, "enough").ok());
  RunCallbacks();
  EXPECT_EQ(*committed, v1::FAILED);
  run->scanning = false;
  publisher_.OnScanned(run);
  RunCallbacks();
  EXPECT_EQ(ios_[run]->calls["Publish"], 0);
  EXPECT_THAT(ios_[run]->inflight(), IsEmpty());
  EXPECT_EQ(ended_saves_.failures(*run).back().error().reason(), "SAVE_ABORTED");
}

TEST_F(SaveTrackerTest, ASaveCanBeAbortedWhileItsPolicyIsRecorded) {
  Run* run = AddRun(1000);
  storage::v1::RetentionPolicy last;
  last.set_last(1);
  run->ledger->SetRetention(last, {});
  Save* save = Admitted(run, 1);
  save->retention.emplace().set_last(2);
  RunCallbacks();
  ios_[run]->held.insert("SaveRunRecord");
  ios_[run]->held.insert("Discard");  // So that the save is still there when the policy is recorded.
  EXPECT_EQ(Seal(save, 0), "");
  RunCallbacks();
  EXPECT_EQ(ios_[run]->calls["SaveRunRecord"], 1);
  const auto committed = Wait(save, v1::COMMITTED);
  EXPECT_TRUE(tracker_.Abort(save, {0}, "enough").ok());
  ios_[run]->held.clear();
  ios_[run]->ReleaseHeld();
  RunCallbacks();
  EXPECT_EQ(*committed, v1::FAILED);
  EXPECT_EQ(ios_[run]->calls["Publish"], 0);
}

TEST_F(SaveTrackerTest, ASaveThatIsBeingPublishedIsEndedByNobodyElse) {
  Run* run = AddRun(1000);
  Save* save = Admitted(run, 1);
  RunCallbacks();
  ios_[run]->hold_publish = true;
  EXPECT_EQ(Seal(save, 0), "");
  RunCallbacks();
  EXPECT_EQ(save->phase(), SavePhase::kPublishing);
  const auto committed = Wait(save, v1::COMMITTED);
  EXPECT_EQ(ReasonOf(tracker_.Abort(save, {0}, "enough")), reason::kSealed);
  tracker_.Fail(save, absl::AbortedError("test"));
  EXPECT_EQ(save->phase(), SavePhase::kPublishing);
  ios_[run]->ReleaseHeld();
  RunCallbacks();
  EXPECT_EQ(*committed, v1::COMMITTED);
}

TEST_F(SaveTrackerTest, ASaveCanBeAbortedBetweenTwoPublicationsThatChangeNothing) {
  Run* run = AddRun(1000);
  Save* save = Admitted(run, 1);
  ios_[run]->publish_result = {
      .outcome = PublishOutcome::kFailed, .status = absl::UnavailableError("busy"), .retryable = true};
  EXPECT_EQ(Seal(save, 0), "");
  const auto committed = Wait(save, v1::COMMITTED);
  RunCallbacks();
  EXPECT_EQ(save->phase(), SavePhase::kWritten);
  EXPECT_TRUE(tracker_.Abort(save, {0}, "enough").ok());
  RunCallbacks();
  EXPECT_EQ(*committed, v1::FAILED);
  clock_.Advance(std::chrono::seconds(1));
  publisher_.OnTick(clock_.Now());
  RunCallbacks();
  EXPECT_EQ(ios_[run]->calls["Publish"], 1);
}

TEST_F(SaveTrackerTest, ALateSaveFailsAndNamesTheMissingRanks) {
  Save* save = Admitted(AddRun(1000), 2);
  EXPECT_EQ(Seal(save, 0), "");
  EXPECT_EQ(tracker_.NextDeadline(), clock_.Now() + std::chrono::seconds(60));
  clock_.Advance(std::chrono::seconds(60));
  tracker_.OnTick(clock_.Now());
  EXPECT_EQ(ReasonOf(save->error), "RANKS_MISSING");
  EXPECT_EQ(DetailsOf(save->error).at("ranks"), "1");
}

TEST_F(SaveTrackerTest, AFailingSaveRevokesItsStreams) {
  Save* save = Admitted(AddRun(1000), 1);
  save->PartOf(0).placed->Add("a", 0, 0);
  std::string revoked;
  const auto target = streams_.Open(save, 0, "a", [&](const absl::Status& why) { revoked = ReasonOf(why); });
  ASSERT_TRUE(target.ok());
  EXPECT_EQ(Seal(save, 0), "UNKNOWN_SAVE") << "bytes are still coming";
  tracker_.Fail(save, MakeError(absl::StatusCode::kAborted, "FENCED", "test"));
  EXPECT_EQ(revoked, "FENCED");
  streams_.Close(target->id);  // A no-op.
}

TEST_F(SaveTrackerTest, RemembersHowSavesEndedWithoutTheirParts) {
  Run* run = AddRun(1000);
  Save* save = Admitted(run, 1);
  const SaveId key = save->key;
  EXPECT_EQ(Seal(save, 0), "");
  RunCallbacks();
  ended_saves_.OnTick();
  EXPECT_THAT(save->parts, IsEmpty());
  EXPECT_EQ(ended_saves_.Find(run, key), save);
  EXPECT_EQ(ended_saves_.Past(*run, key)->level(), v1::COMMITTED);
  EXPECT_EQ(ended_saves_.Past(*run, {9, "t", 9}), std::nullopt);
  ended_saves_.Forget(run);
  EXPECT_EQ(ended_saves_.Find(run, key), nullptr);
}

}  // namespace
}  // namespace ckptd
