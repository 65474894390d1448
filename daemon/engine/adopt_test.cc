// Checkpoints of another program: listed, and adopted into the run's order, on a root in memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "daemon/engine/engine.h"
#include "storage/base/errors.h"
#include "tests/testing/engine_fixture.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kNow = 1'700'000'000'000'000;  // TestClock's date.
constexpr int64_t kHour = 3'600'000'000;
constexpr int64_t kReserved = 1'000'000;

class AdoptionTest : public EngineTest {
 protected:
  void SetUp() override {
    EngineTest::SetUp();
    disks_[1] = std::make_shared<FakeDisk>();
  }
  // How long before the test clock's date the checkpoint was finished.
  void Foreign(const std::string& tag, int64_t ago_us) { disks_[1]->finished[tag] = kNow - ago_us; }

  struct Call {
    int64_t id = 0;
    std::vector<v1::AdoptCheckpointsResponse> events;
    std::vector<absl::Status> ended;
    bool listens = true;
    // "step_1 ADOPTED", "step_2 REFUSED ADOPT_ORDER"; progress is left out.
    std::vector<std::string> Outcomes() const {
      std::vector<std::string> outcomes;
      for (const auto& event : events) {
        if (event.outcome() == v1::ADOPT_OUTCOME_UNSPECIFIED) continue;
        outcomes.push_back(event.tag() + " " + v1::AdoptOutcome_Name(event.outcome()) +
                           (event.has_error() ? " " + event.error().reason() : ""));
      }
      return outcomes;
    }
  };
  std::shared_ptr<Call> StartAdopting(const std::vector<std::string>& tags = {}, bool allow_removal = false,
                                      Caller caller = Caller{0, 1000, false}) {
    v1::AdoptCheckpointsRequest request;
    request.set_parent(run_);
    for (const std::string& tag : tags) request.add_tags(tag);
    request.set_allow_removal(allow_removal);
    auto call = std::make_shared<Call>();
    call->id = engine_->AdoptCheckpoints(
        caller, request,
        [call](const v1::AdoptCheckpointsResponse& event) {
          call->events.push_back(event);
          return call->listens;
        },
        [call](const absl::Status& status) { call->ended.push_back(status); });
    return call;
  }
  std::shared_ptr<Call> Adopt(const std::vector<std::string>& tags = {}, bool allow_removal = false) {
    auto call = StartAdopting(tags, allow_removal);
    RunQueued();
    EXPECT_EQ(call->ended.size(), 1u);
    return call;
  }
  std::vector<std::string> ForeignTags() {
    v1::ListCheckpointsRequest request;
    request.set_parent(run_);
    request.set_show_foreign(true);
    Answer<v1::ListCheckpointsResponse> answer;
    engine_->ListCheckpoints(Caller{0, 1000, false}, request, answer.reply());
    RunQueued();
    std::vector<std::string> tags;
    for (const auto& foreign : answer.get().foreign()) tags.push_back(foreign.tag());
    return tags;
  }
  int64_t SequenceOf(const std::string& tag) {
    for (const auto& [sequence, checkpoint] : disks_[1]->committed) {
      if (checkpoint.summary.tag() == tag) return sequence;
    }
    return 0;
  }
  std::string Latest() {
    v1::GetCheckpointRequest request;
    request.set_name(run_ + "/checkpoints/latest");
    Answer<v1::Checkpoint> answer;
    engine_->GetCheckpoint(Caller{0, 1000, false}, request, answer.reply());
    return answer.status().ok() ? answer.get().tag() : answer.reason();
  }
};

// ---- listing

TEST_F(AdoptionTest, ListsForeignCheckpointsNewestFirstOnlyWhenAsked) {
  Foreign("step_1", 3 * kHour);
  Foreign("step_3", kHour);
  Foreign("step_2", 2 * kHour);
  SaveAll(Launch("a", 1), "ours", 1);
  v1::ListCheckpointsRequest request;
  request.set_parent(run_);
  Answer<v1::ListCheckpointsResponse> plain, both;
  engine_->ListCheckpoints(Caller{0, 1000, false}, request, plain.reply());
  EXPECT_EQ(plain.get().foreign_size(), 0);
  request.set_show_foreign(true);
  engine_->ListCheckpoints(Caller{0, 1000, false}, request, both.reply());
  EXPECT_FALSE(both.has()) << "the disk is asked, and the engine does not wait for it";
  RunQueued();
  ASSERT_EQ(both.get().checkpoints_size(), 1);
  EXPECT_EQ(both.get().checkpoints(0).tag(), "ours");
  ASSERT_EQ(both.get().foreign_size(), 3);
  const v1::ForeignCheckpoint& newest = both.get().foreign(0);
  EXPECT_EQ(newest.tag(), "step_3");
  EXPECT_EQ(newest.format(), "nxd");
  EXPECT_EQ(newest.directory(), "/root1/step_3");
  EXPECT_EQ(newest.done_time().seconds(), (kNow - kHour) / 1'000'000);
  EXPECT_EQ(newest.size_bytes(), 100);
  EXPECT_THAT(ForeignTags(), ElementsAre("step_3", "step_2", "step_1"));
}

TEST_F(AdoptionTest, ForeignCheckpointsAreOnLastPage) {
  Foreign("theirs", kHour);
  auto sessions = Launch("a", 1);
  for (int i = 1; i <= 3; ++i) SaveAll(sessions, "step_" + std::to_string(i), i);
  v1::ListCheckpointsRequest request;
  request.set_parent(run_);
  request.set_page_size(2);
  request.set_show_foreign(true);
  Answer<v1::ListCheckpointsResponse> first, last;
  engine_->ListCheckpoints(Caller{0, 1000, false}, request, first.reply());
  EXPECT_EQ(first.get().foreign_size(), 0);
  request.set_page_token(first.get().next_page_token());
  engine_->ListCheckpoints(Caller{0, 1000, false}, request, last.reply());
  RunQueued();
  EXPECT_EQ(last.get().checkpoints_size(), 1);
  EXPECT_EQ(last.get().foreign_size(), 1);
}

TEST_F(AdoptionTest, PagesHoldEveryCheckpointOnceNewestFirst) {
  auto sessions = Launch("a", 1);
  for (int i = 1; i <= 5; ++i) SaveAll(sessions, "step_" + std::to_string(i), i);
  for (const bool show_all : {false, true}) {
    v1::ListCheckpointsRequest request;
    request.set_parent(run_);
    request.set_page_size(2);
    request.set_show_all(show_all);
    std::vector<std::string> tags;
    for (int pages = 0; pages < 3; ++pages) {
      Answer<v1::ListCheckpointsResponse> page;
      engine_->ListCheckpoints(Caller{0, 1000, false}, request, page.reply());
      for (const v1::Checkpoint& checkpoint : page.get().checkpoints()) tags.push_back(checkpoint.tag());
      request.set_page_token(page.get().next_page_token());
      EXPECT_EQ(request.page_token().empty(), pages == 2);
    }
    EXPECT_THAT(tags, ElementsAre("step_5", "step_4", "step_3", "step_2", "step_1"));
  }
}

TEST_F(AdoptionTest, ForeignCheckpointIsNotLatestNotResumedFromAndNotCounted) {
  Foreign("theirs", kHour);
  auto sessions = Launch("a", 1);
  EXPECT_EQ(Latest(), "NO_CHECKPOINT");
  EXPECT_FALSE(Resume(sessions[0], 0).get().has_checkpoint());
  for (int i = 1; i <= 3; ++i) SaveAll(sessions, "step_" + std::to_string(i), i, 2);
  RunQueued();
  EXPECT_THAT(Tags(), ElementsAre("step_3", "step_2"));
  EXPECT_THAT(disks_[1]->evicted, ElementsAre("step_1"));
  EXPECT_THAT(ForeignTags(), ElementsAre("theirs"));
}

TEST_F(AdoptionTest, HungDiskDoesNotBlockListOfOwnCheckpoints) {
  Foreign("theirs", kHour);
  SaveAll(Launch("a", 1), "ours", 1);
  ios_[1]->held.insert("ListForeign");
  EXPECT_THAT(Tags(), ElementsAre("ours"));
}

// ---- adopting

TEST_F(AdoptionTest, AdoptsAllInOrderOfMarkersAndResumesFromNewest) {
  Foreign("step_30", kHour);
  Foreign("step_10", 3 * kHour);
  Foreign("step_20", 2 * kHour);
  auto sessions = Launch("a", 1);
  auto call = Adopt();
  EXPECT_THAT(call->Outcomes(), ElementsAre("step_10 ADOPTED", "step_20 ADOPTED", "step_30 ADOPTED"));
  EXPECT_TRUE(call->ended[0].ok()) << call->ended[0];
  EXPECT_THAT(Tags(), ElementsAre("step_30", "step_20", "step_10"));
  EXPECT_EQ(Latest(), "step_30");
  EXPECT_THAT(ForeignTags(), IsEmpty());
  EXPECT_EQ(ios_[1]->survey_owner, 1000u) << "the run's user";
  const v1::Checkpoint& adopted = call->events.back().checkpoint();
  EXPECT_EQ(adopted.adopted_from(), "nxd");
  EXPECT_EQ(adopted.step(), 30);
  EXPECT_EQ(adopted.level(), v1::COMMITTED);
  EXPECT_EQ(call->events.back().index(), 3);
  EXPECT_EQ(call->events.back().count(), 3);
  EXPECT_EQ(Resume(sessions[0], 0).get().checkpoint().tag(), "step_30");
  SaveAll(sessions, "step_40", 40);
  EXPECT_THAT(Tags(), ElementsAre("step_40", "step_30", "step_20", "step_10"));
}

TEST_F(AdoptionTest, AdoptedCheckpointsAreOlderThanLaterSavesOfCkptd) {
  Foreign("step_10", 3 * kHour);
  Foreign("step_20", 2 * kHour);
  Foreign("step_30", kHour);
  auto sessions = Launch("a", 1);
  SaveAll(sessions, "step_40", 40);
  EXPECT_GT(SequenceOf("step_40"), kReserved);
  // The newer checkpoints are adopted first. The older one gets its place before them later, also from the
  // next daemon.
  EXPECT_THAT(Adopt({"step_30", "step_20"})->Outcomes(), ElementsAre("step_20 ADOPTED", "step_30 ADOPTED"));
  EXPECT_EQ(Latest(), "step_40");
  Start(16);
  Launch("b", 1);
  EXPECT_THAT(Adopt()->Outcomes(), ElementsAre("step_10 ADOPTED"));
  EXPECT_THAT(Tags(), ElementsAre("step_40", "step_30", "step_20", "step_10"));
  EXPECT_EQ(Latest(), "step_40");
  EXPECT_LT(SequenceOf("step_30"), kReserved);
}

TEST_F(AdoptionTest, RefusesForeignOlderThanFirstSaveAndAdoptsYounger) {
  auto sessions = Launch("a", 1);
  SaveAll(sessions, "ours", 1);
  EXPECT_EQ(SequenceOf("ours"), 1);
  Foreign("older", kHour);
  EXPECT_THAT(Adopt()->Outcomes(), ElementsAre("older REFUSED ADOPT_ORDER"));
  EXPECT_EQ(Latest(), "ours");
  EXPECT_THAT(ForeignTags(), ElementsAre("older"));
  Start(16);  // Nor by the next daemon, which finds both.
  Launch("a", 1);
  EXPECT_THAT(Adopt()->Outcomes(), ElementsAre("older REFUSED ADOPT_ORDER"));
  // The job has used the other program again and now comes back.
  disks_[1]->committed.at(1).summary.set_commit_time_us(kNow - 2 * kHour);
  Start(16);
  sessions = Launch("b", 1);
  EXPECT_THAT(Adopt()->Outcomes(), ElementsAre("older ADOPTED"));
  EXPECT_EQ(Latest(), "older");
  SaveAll(sessions, "next", 2);
  EXPECT_THAT(Tags(), ElementsAre("next", "older", "ours"));
}

TEST_F(AdoptionTest, CheckpointsLeftOutAreAdoptedLaterBetweenTheirNeighbours) {
  for (const int step : {10, 15, 17, 20}) Foreign("step_" + std::to_string(step), (30 - step) * kHour);
  auto sessions = Launch("a", 1);
  SaveAll(sessions, "step_40", 40);
  Adopt({"step_20"});
  Adopt({"step_10"});
  Adopt();
  EXPECT_THAT(Tags(), ElementsAre("step_40", "step_20", "step_17", "step_15", "step_10"));
}

TEST_F(AdoptionTest, NeverReusesSequenceOfSave) {
  auto sessions = Launch("a", 1);
  for (int i = 1; i <= 3; ++i) SaveAll(sessions, "step_" + std::to_string(i), i, 1);
  RunQueued();
  EXPECT_THAT(Tags(), ElementsAre("step_3"));
  Foreign("older", kHour);
  Start(16);  // It finds both, and 1 and 2 are nobody's any more.
  Launch("b", 1);
  EXPECT_THAT(Adopt({}, /*allow_removal=*/true)->Outcomes(), ElementsAre("older REFUSED ADOPT_ORDER"));
}

TEST_F(AdoptionTest, SaveInFlightIsNewerThanCheckpointsFinishedBeforeItsBegin) {
  Foreign("theirs", kHour);
  auto sessions = Launch("a", 1);
  ios_[1]->hold_publish = true;
  SaveAll(sessions, "ours", 1);
  EXPECT_THAT(Adopt()->Outcomes(), ElementsAre("theirs ADOPTED"));
  EXPECT_EQ(Latest(), "theirs");
  ios_[1]->ReleaseHeld();
  RunQueued();
  EXPECT_THAT(Tags(), ElementsAre("ours", "theirs"));
}

TEST_F(AdoptionTest, RefusesMarkerFromTheFutureBesideOwnCheckpoints) {
  Foreign("future", -kHour);
  auto sessions = Launch("a", 1);
  SaveAll(sessions, "ours", 1);
  EXPECT_THAT(Adopt()->Outcomes(), ElementsAre("future REFUSED ADOPT_ORDER"));
  EXPECT_EQ(Latest(), "ours");
}

TEST_F(AdoptionTest, RepeatedAdoptionNamesCheckpointsAlreadyAdopted) {
  Foreign("theirs", kHour);
  auto sessions = Launch("a", 1);
  SaveAll(sessions, "ours", 1);
  Adopt();
  const int surveys = ios_[1]->calls["SurveyForeign"];
  EXPECT_THAT(Adopt({"theirs", "ours"})->Outcomes(), ElementsAre("ours ALREADY_OURS", "theirs ALREADY_OURS"));
  EXPECT_EQ(ios_[1]->calls["SurveyForeign"], surveys) << "nothing is read again";
  EXPECT_THAT(Adopt()->Outcomes(), IsEmpty());
}

TEST_F(AdoptionTest, RefusedCheckpointDoesNotBlockOthers) {
  Foreign("step_1", 3 * kHour);
  Foreign("step_2", 2 * kHour);
  Foreign("step_3", kHour);
  Launch("a", 1);
  ios_[1]->errors["SurveyForeign step_2"] =
      MakeError(absl::StatusCode::kAborted, "FOREIGN_CHANGED", "step_2");
  auto call = Adopt({"step_1", "step_2", "step_3", "gone", "../up"});
  EXPECT_TRUE(call->ended[0].ok());
  EXPECT_THAT(call->Outcomes(),
              ElementsAre("../up REFUSED INVALID_TAG", "gone REFUSED FOREIGN_UNFINISHED", "step_1 ADOPTED",
                          "step_2 REFUSED FOREIGN_CHANGED", "step_3 ADOPTED"));
  ios_[1]->errors.clear();
  EXPECT_THAT(Adopt()->Outcomes(), ElementsAre("step_2 ADOPTED"));
  EXPECT_THAT(Tags(), ElementsAre("step_3", "step_2", "step_1"));
}

TEST_F(AdoptionTest, FailedSyncIsNotRetried) {
  Foreign("theirs", kHour);
  Launch("a", 1);
  ios_[1]->errors["SurveyForeign"] = MakeError(absl::StatusCode::kDataLoss, "FOREIGN_UNSYNCED", "theirs");
  EXPECT_THAT(Adopt()->Outcomes(), ElementsAre("theirs REFUSED FOREIGN_UNSYNCED"));
  ios_[1]->errors.clear();
  EXPECT_THAT(Adopt()->Outcomes(), ElementsAre("theirs REFUSED FOREIGN_UNSYNCED"));
  EXPECT_EQ(ios_[1]->calls["SurveyForeign"], 1);
}

TEST_F(AdoptionTest, RefusesTagThatIsBeingSaved) {
  auto sessions = Launch("a", 1);
  ios_[1]->hold_publish = true;
  SaveAll(sessions, "tag", 1);
  Foreign("tag", kHour);  // It appeared meanwhile.
  EXPECT_THAT(Adopt()->Outcomes(), ElementsAre("tag REFUSED SAVE_CONFLICT"));
}

// ---- retention

TEST_F(AdoptionTest, AdoptedCheckpointsCountForRetentionFromNextSave) {
  for (int i = 1; i <= 3; ++i) Foreign("old_" + std::to_string(i), (10 - i) * kHour);
  auto sessions = Launch("a", 1);
  Adopt();
  EXPECT_EQ(Tags().size(), 3u) << "nobody has said how many are kept";
  SaveAll(sessions, "ours", 1, 2);
  RunQueued();
  EXPECT_THAT(Tags(), ElementsAre("ours", "old_3"));
  EXPECT_THAT(disks_[1]->evicted, ElementsAre("old_1", "old_2"));
}

TEST_F(AdoptionTest, AdoptsCheckpointThatRetentionWouldEvictOnlyWhenAllowed) {
  for (int i = 1; i <= 3; ++i) Foreign("old_" + std::to_string(i), (10 - i) * kHour);
  auto sessions = Launch("a", 1);
  SaveAll(sessions, "ours", 1, 2);
  EXPECT_THAT(Adopt()->Outcomes(),
              ElementsAre("old_1 REFUSED ADOPT_REMOVED", "old_2 REFUSED ADOPT_REMOVED", "old_3 ADOPTED"));
  EXPECT_THAT(disks_[1]->evicted, IsEmpty());
  EXPECT_THAT(Adopt({}, /*allow_removal=*/true)->Outcomes(), ElementsAre("old_1 ADOPTED", "old_2 ADOPTED"));
  RunQueued();
  EXPECT_THAT(disks_[1]->evicted, ElementsAre("old_1", "old_2"));
  EXPECT_THAT(Tags(), ElementsAre("ours", "old_3"));
}

// ---- permissions and conditions

TEST_F(AdoptionTest, OnlyOwnerOfRunAndRootUserAdopt) {
  Foreign("theirs", kHour);
  Launch("a", 1);
  auto stranger = StartAdopting({}, false, Caller{0, 1001, false});
  ASSERT_EQ(stranger->ended.size(), 1u);
  EXPECT_EQ(ReasonOf(stranger->ended[0]), "WRONG_UID");
  auto root = StartAdopting({}, false, Caller{0, 0, true});
  RunQueued();
  EXPECT_THAT(root->Outcomes(), ElementsAre("theirs ADOPTED"));
}

TEST_F(AdoptionTest, RefusesSecondAdoptionWhileOneIsRunning) {
  Foreign("theirs", kHour);
  Launch("a", 1);
  ios_[1]->held.insert("SurveyForeign");
  auto first = StartAdopting();
  RunQueued();
  auto second = StartAdopting();
  ASSERT_EQ(second->ended.size(), 1u);
  EXPECT_EQ(ReasonOf(second->ended[0]), "ADOPTING");
  ios_[1]->ReleaseHeld();
  RunQueued();
  EXPECT_THAT(first->Outcomes(), ElementsAre("theirs ADOPTED"));
  EXPECT_THAT(Adopt()->Outcomes(), IsEmpty());
}

TEST_F(AdoptionTest, RefusesAdoptionWhileDrainingAndTooManyTags) {
  Launch("a", 1);
  std::vector<std::string> many;
  for (int i = 0; i < 1001; ++i) many.push_back("step_" + std::to_string(i));
  EXPECT_EQ(ReasonOf(StartAdopting(many)->ended.at(0)), "INVALID_ARGUMENT");
  engine_->Drain([] {});
  EXPECT_EQ(ReasonOf(StartAdopting()->ended.at(0)), "DRAINING");
}

TEST_F(AdoptionTest, ReportsProgressAndStopsWhenCallerDisconnects) {
  Foreign("step_1", 2 * kHour);
  Foreign("step_2", kHour);
  Launch("a", 1);
  ios_[1]->held.insert("SurveyForeign");
  auto call = StartAdopting();
  RunQueued();
  ios_[1]->surveyed->read_bytes.store(40);
  AdvanceClock(std::chrono::seconds(1));
  ASSERT_EQ(call->events.size(), 1u);
  EXPECT_EQ(call->events[0].outcome(), v1::ADOPT_OUTCOME_UNSPECIFIED);
  EXPECT_EQ(call->events[0].tag(), "step_1");
  EXPECT_EQ(call->events[0].read_bytes(), 40);
  EXPECT_EQ(call->events[0].size_bytes(), 100);
  call->listens = false;
  AdvanceClock(std::chrono::seconds(1));
  EXPECT_TRUE(ios_[1]->surveyed->stop.load());
  ios_[1]->ReleaseHeld();
  RunQueued();
  EXPECT_TRUE(absl::IsCancelled(call->ended.at(0)));
  EXPECT_THAT(ForeignTags(), ElementsAre("step_2", "step_1"));
  EXPECT_THAT(Adopt()->Outcomes(), ElementsAre("step_1 ADOPTED", "step_2 ADOPTED"));
}

TEST_F(AdoptionTest, DoesNotAdoptCheckpointWhenStoppedAfterReadingIt) {
  Foreign("theirs", kHour);
  Launch("a", 1);
  ios_[1]->held.insert("SaveRunRecord");
  auto call = StartAdopting();
  RunQueued();
  engine_->StopAdoption(call->id);
  ios_[1]->ReleaseHeld();
  RunQueued();
  // Its sequence was being written: the checkpoint may be adopted or not, but the call has ended.
  ASSERT_EQ(call->ended.size(), 1u);
  EXPECT_EQ(Tags().size() + ForeignTags().size(), 1u);
}

// ---- errors

TEST_F(AdoptionTest, UnknownOutcomeMakesRootReadOnlyUntilScan) {
  Foreign("step_1", 2 * kHour);
  Foreign("step_2", kHour);
  Launch("a", 1);
  ios_[1]->adopt_result = {PublishOutcome::kIndeterminate,
                           MakeError(absl::StatusCode::kUnknown, "INDETERMINATE", "the sync failed")};
  ios_[1]->held.insert("Rescan");
  auto call = Adopt();
  EXPECT_THAT(call->Outcomes(), ElementsAre("step_1 REFUSED INDETERMINATE"));
  EXPECT_EQ(ReasonOf(call->ended[0]), "INDETERMINATE");
  EXPECT_EQ(ios_[1]->calls["Rescan"], 1);
  ios_[1]->adopt_result = {PublishOutcome::kCommitted, absl::OkStatus()};
  ios_[1]->ReleaseHeld();
  RunQueued();
  EXPECT_THAT(Adopt()->Outcomes(), ElementsAre("step_1 ADOPTED", "step_2 ADOPTED"));
}

TEST_F(AdoptionTest, ReportsWhenListOrSequenceIsUnavailable) {
  Foreign("theirs", kHour);
  Launch("a", 1);
  ios_[1]->errors["ListForeign"] = ErrnoError(EIO, "listing");
  EXPECT_EQ(ReasonOf(Adopt()->ended[0]), "IO_ERROR");
  ios_[1]->errors.clear();
  ios_[1]->errors["SaveRunRecord"] = ErrnoError(ENOSPC, "writing");
  EXPECT_THAT(Adopt()->Outcomes(), ElementsAre("theirs REFUSED NO_SPACE"));
  ios_[1]->errors.clear();
  EXPECT_THAT(Adopt()->Outcomes(), ElementsAre("theirs ADOPTED"));
}

// A save under an adopted tag by the first attempt is a new save and no retry of the adopted one.
TEST_F(AdoptionTest, AdoptedTagCanBeSavedAgain) {
  Foreign("step_1", kHour);
  auto sessions = Launch("a", 1);
  Adopt();
  SaveAll(sessions, "step_1", 1);
  RunQueued();
  EXPECT_THAT(Tags(), ElementsAre("step_1"));
  EXPECT_EQ(disks_[1]->committed.rbegin()->second.summary.adopted_from(), "");
  EXPECT_GT(SequenceOf("step_1"), kReserved);
}

TEST_F(AdoptionTest, AdoptedCheckpointIsNoSaveInHistory) {
  Foreign("step_1", kHour);
  Attach(Trainer("t"));  // No attempt acts.
  Adopt();
  Start(16);
  Attach(Trainer("t"));
  EXPECT_THAT(Tags(), ElementsAre("step_1"));
  EXPECT_EQ(disks_[1]->run_record.outcomes_size(), 0);
}

TEST_F(AdoptionTest, RunReportsThatRootHasForeignCheckpoints) {
  Foreign("step_1", kHour);
  Launch("a", 1);
  EXPECT_THAT(observer_.infos,
              ::testing::Contains(HasSubstr("holds 1 finished checkpoints of another program")));
}

// The checkpoint is not leased before the decision is on disk.
TEST_F(AdoptionTest, CheckpointThatAttemptResumesFromSurvivesAdoptionThatExceedsRetention) {
  SaveAll(Launch("before", 1), "ours", 1, 1);
  Foreign("theirs", 0);  // Of the same time, and behind it by name: the newest.
  const auto after = Launch("after", 1);
  ios_[1]->held.insert("Adopt");
  const auto adopting = StartAdopting();
  RunQueued();
  v1::ResumeRequest request;
  request.set_run(run_);
  Answer<v1::ResumeResponse> resumed;
  engine_->Resume(As(after[0]), request, resumed.reply());
  ios_[1]->held.insert("SaveRunRecord");  // Not that the attempt acts, but what it resumes from.
  RunQueued();
  ASSERT_FALSE(resumed.has() || !adopting->ended.empty());
  ios_[1]->held.clear();
  ios_[1]->ReleaseHeld();
  RunQueued();
  EXPECT_THAT(adopting->Outcomes(), ElementsAre("theirs ADOPTED"));
  ASSERT_TRUE(resumed.status().ok()) << resumed.status();
  EXPECT_EQ(resumed.get().checkpoint().tag(), "ours");
  EXPECT_NE(SequenceOf("ours"), 0);
}

}  // namespace
}  // namespace ckptd
