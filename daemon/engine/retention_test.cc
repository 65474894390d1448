// Retention, OutcomeHistory and TrashCollector together, without the rest of the engine.
#include "daemon/engine/retention.h"

#include "daemon/engine/outcome_history.h"
#include "daemon/engine/trash_collector.h"
#include "storage/base/errors.h"
#include "tests/testing/engine_class_fixture.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class RetentionTest : public ClassTest {
 protected:
  void Record(Run* run) {
    storage::v1::Outcome outcome;
    outcome.set_tag("s3");
    history_.Record(run, outcome);
  }
  std::vector<int64_t> Kept(const Run& run) const {
    std::vector<int64_t> kept;
    for (const auto& entry : run.catalog.committed()) kept.push_back(entry.first);
    return kept;
  }

  std::vector<int64_t> leased_;
  int scans_ = 0, changes_ = 0, refusals_ = 0;
  OutcomeHistory history_{&clock_,
                          this,
                          {.retention_may_continue = [this](Run* run) { retention_.Apply(run); },
                           .write_failed = [this](Run*, bool waits) { refusals_ += waits; }}};
  TrashCollector trash_{&clock_,
                        this,
                        {.has_leases = [this](const Run&) { return !leased_.empty(); },
                         .room_changed = [this](Run*) { ++changes_; },
                         .emptied = [](Run*) {}}};
  Retention retention_{this,
                       &history_,
                       &trash_,
                       {.leased_sequences = [this](const Run&) { return leased_; },
                        .evicted = [](Run*) {},
                        .needs_scan = [this](Run*) { ++scans_; },
                        .settled = [] {}}};
};

TEST_F(RetentionTest, EvictsAllButTheNewestUndamagedOnes) {
  Run* run = AddRun(1000, {1, 2, 3, 4});
  run->catalog.SetDamage(3, storage::v1::Damage());
  retention_.SetNumKept(run, 2);
  retention_.Apply(run);
  RunCallbacks();
  EXPECT_THAT(Kept(*run), ElementsAre(2, 3, 4)) << "a damaged checkpoint does not count as one of the two";
}

TEST_F(RetentionTest, KeepsEverythingWithoutANumber) {
  Run* run = AddRun(1000, {1, 2, 3});
  retention_.Apply(run);
  RunCallbacks();
  EXPECT_THAT(Kept(*run), ElementsAre(1, 2, 3));
}

TEST_F(RetentionTest, KeepsWhatIsPinnedLeasedPointedToOrBeingDecided) {
  Run* run = AddRun(1000, {1, 2, 3, 4, 5, 6});
  retention_.SetNumKept(run, 1);
  run->catalog.SetPinned(1, true);
  leased_ = {2};
  retention_.SetPointers(run, PointerFiles{.holders = {3}, .warnings = {}});
  retention_.BeginResumeDecision(run, 4);
  retention_.BeginPin(run, 5);
  retention_.Apply(run);
  RunCallbacks();
  EXPECT_THAT(Kept(*run), ElementsAre(1, 2, 3, 4, 5, 6));
  retention_.EndResumeDecision(run, 4);
  retention_.EndPin(run, 5);
  retention_.Apply(run);
  RunCallbacks();
  EXPECT_THAT(Kept(*run), ElementsAre(1, 2, 3, 6));
}

TEST_F(RetentionTest, WaitsUntilTheHistoryIsOnDisk) {
  Run* run = AddRun(1000, {1, 2});
  retention_.SetNumKept(run, 1);
  ios_[run]->errors["SaveRunRecord"] = absl::InternalError("broken");
  Record(run);
  RunCallbacks();
  EXPECT_THAT(Kept(*run), ElementsAre(1, 2));
  EXPECT_TRUE(history_.MayFreeRoom(*run));
  EXPECT_FALSE(history_.IsWriting(*run)) << "a daemon that ends does not wait for the retry";
  EXPECT_EQ(refusals_, 1);
  EXPECT_THAT(warnings_, SizeIs(1));
  ios_[run]->errors.clear();
  clock_.Advance(std::chrono::seconds(2));
  history_.OnTick(run, clock_.Now());
  RunCallbacks();
  EXPECT_THAT(Kept(*run), ElementsAre(2));
  EXPECT_FALSE(history_.MayFreeRoom(*run));
}

TEST_F(RetentionTest, DoesNotWaitForAHistoryThatLacksTheRoomItWouldFree) {
  Run* run = AddRun(1000, {1, 2});
  retention_.SetNumKept(run, 1);
  ios_[run]->errors["SaveRunRecord"] =
      MakeError(absl::StatusCode::kResourceExhausted, "NO_SPACE", "the disk is full");
  Record(run);
  RunCallbacks();
  EXPECT_THAT(Kept(*run), ElementsAre(2));
}

TEST_F(RetentionTest, AsksForAScanAfterAnEvictionThatFailed) {
  Run* run = AddRun(1000, {1, 2});
  retention_.SetNumKept(run, 1);
  ios_[run]->errors["Evict"] = absl::InternalError("broken");
  retention_.Apply(run);
  EXPECT_TRUE(retention_.IsWorking(*run));
  RunCallbacks();
  EXPECT_EQ(scans_, 1);
  EXPECT_FALSE(retention_.IsWorking(*run));
  EXPECT_TRUE(retention_.HasEvictions(*run)) << "its outcome is unknown before the scan";
}

TEST_F(RetentionTest, PredictsWhatTheNextCommitPushesOut) {
  Run* run = AddRun(1000, {1, 2, 3});
  retention_.SetNumKept(run, 3);
  EXPECT_THAT(retention_.PredictedVictims(*run), ElementsAre(1));
  retention_.SetPointers(run, PointerFiles{.holders = {1, 3}, .warnings = {}});
  EXPECT_THAT(retention_.PredictedVictims(*run), IsEmpty());
  retention_.SetNumKept(run, 1);
  EXPECT_THAT(retention_.PredictedVictims(*run), ElementsAre(2, 3)) << "the next save takes over the pointer";
}

TEST_F(RetentionTest, TrashIsEmptiedAgainAfterAFailureAndForLateReaders) {
  Run* run = AddRun(1000);
  ios_[run]->errors["EmptyTrash"] = absl::InternalError("broken");
  trash_.SetBytes(run, 100);
  trash_.Empty(run);
  trash_.Empty(run);  // While the first pass is under way: one more follows, unless the first fails.
  RunCallbacks();
  EXPECT_EQ(changes_, 1);
  EXPECT_THAT(warnings_, SizeIs(1));
  EXPECT_TRUE(trash_.MayFreeRoom(*run));
  ios_[run]->errors.clear();
  clock_.Advance(std::chrono::seconds(2));
  trash_.OnTick(run, clock_.Now());
  RunCallbacks();
  EXPECT_EQ(trash_.bytes(*run), 0);
  EXPECT_FALSE(trash_.MayFreeRoom(*run));
}

}  // namespace
}  // namespace ckptd
