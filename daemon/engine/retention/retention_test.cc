// Retention, OutcomeHistory and TrashCollector together, without the rest of the engine.
#include "daemon/engine/retention/retention.h"

#include "daemon/engine/retention/outcome_history.h"
#include "daemon/engine/retention/trash_collector.h"
#include "storage/base/errors.h"
#include "tests/testing/engine_class_fixture.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

class RetentionTest : public ClassTest {
 protected:
  void Record(Run* run) {
    storage::v1::Outcome outcome;
    outcome.set_tag("s3");
    history_.Record(run, outcome);
  }
  // A run whose pointer files are known, as after each scan of a root.
  Run* LoadRun(uid_t uid, const std::vector<int64_t>& sequences = {}) {
    Run* run = AddRun(uid, sequences);
    retention_.SetPointers(run, PointerFiles());
    return run;
  }
  void KeepLast(const Run* run, int count) {
    RetentionPolicy policy;
    policy.set_last(count);
    retention_.SetPolicies(run, {policy});
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
                           .write_failed =
                               [this](Run* run, bool waits) {
                                 refusals_ += waits;
                                 retention_.OnHistoryFailed(run);
                               }}};
  TrashCollector trash_{Duration::zero(),
                        &clock_,
                        this,
                        {.has_leases = [this](const Run&) { return !leased_.empty(); },
                         .room_changed = [this](Run*) { ++changes_; },
                         .emptied = [](Run*, bool) {}}};
  Retention retention_{&clock_,
                       this,
                       &history_,
                       &trash_,
                       {.leased_sequences = [this](const Run&) { return leased_; },
                        .evicted = [](Run*) {},
                        .needs_scan = [this](Run*) { ++scans_; },
                        .settled = [] {}}};
};

TEST_F(RetentionTest, EvictsAllButTheNewestUndamagedOnes) {
  Run* run = LoadRun(1000, {1, 2, 3, 4});
  run->catalog.SetDamage(3, storage::v1::Damage());
  KeepLast(run, 2);
  retention_.Apply(run);
  RunCallbacks();
  EXPECT_THAT(Kept(*run), ElementsAre(2, 3, 4)) << "a damaged checkpoint does not count as one of the two";
}

// A save that takes the place of the newest checkpoint has not ended, and removes it when it can.
TEST_F(RetentionTest, EvictsNothingBeforeThePointerFilesAreKnown) {
  Run* run = AddRun(1000, {1, 2, 3});
  KeepLast(run, 1);
  Record(run);
  RunCallbacks();
  EXPECT_THAT(Kept(*run), ElementsAre(1, 2, 3));
  retention_.SetPointers(run, PointerFiles{.holders = {1}, .warnings = {}});
  retention_.Apply(run);
  RunCallbacks();
  EXPECT_THAT(Kept(*run), ElementsAre(1, 3));
}

TEST_F(RetentionTest, DoesNotRemoveWhatAnotherNodeRemovesNorCountOnIt) {
  Run* run = LoadRun(1000, {1, 2, 3});
  run->catalog.Withdraw(3);
  KeepLast(run, 2);
  retention_.Apply(run);
  RunCallbacks();
  EXPECT_THAT(Kept(*run), ElementsAre(1, 2, 3));
  EXPECT_THAT(run->catalog.evicting(), IsEmpty());
}

TEST_F(RetentionTest, KeepsEverythingWithoutAPolicy) {
  Run* run = LoadRun(1000, {1, 2, 3});
  retention_.Apply(run);
  RunCallbacks();
  EXPECT_THAT(Kept(*run), ElementsAre(1, 2, 3));
}

TEST_F(RetentionTest, KeepsWhatIsPinnedLeasedPointedToOrBeingDecided) {
  Run* run = LoadRun(1000, {1, 2, 3, 4, 5, 6});
  KeepLast(run, 1);
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

TEST_F(RetentionTest, KeepsWhatAnAttemptResumesFromUntilItHasCommittedANewerOne) {
  constexpr int64_t kAttempt = 1;
  Run* run = LoadRun(1000, {1, 2});
  KeepLast(run, 1);
  Ledger::JoinSpec spec;
  spec.world_size = 2;
  spec.launch_id = "launch";
  spec.instance = "instance";
  absl::Status resumed;
  run->ledger->Join(spec, [&](absl::StatusOr<int64_t> attempt) { resumed = attempt.status(); });
  run->ledger->DecideResume(kAttempt, {"s2", 2}, [&](auto choice) { resumed.Update(choice.status()); });
  RunCallbacks();
  ASSERT_TRUE(resumed.ok()) << resumed;
  run->active_attempt = kAttempt;
  Commit(run, 2, kAttempt);  // Ranks that began from nothing have saved it.
  Commit(run, 3);            // A save of an earlier attempt, which recovery has published.
  retention_.Apply(run);
  RunCallbacks();
  EXPECT_THAT(Kept(*run), ElementsAre(2, 3));
  Commit(run, 4, kAttempt);  // It was moved in from another run, where an attempt had this number.
  retention_.Apply(run);
  RunCallbacks();
  EXPECT_THAT(Kept(*run), ElementsAre(2, 4));
  Commit(run, 5, kAttempt);
  storage::v1::Outcome outcome;
  outcome.set_tag("s5");
  outcome.set_attempt(kAttempt);
  outcome.set_sequence(5);
  outcome.set_level(v1::COMMITTED);
  history_.Record(run, outcome);
  RunCallbacks();
  EXPECT_THAT(Kept(*run), ElementsAre(5));
}

TEST_F(RetentionTest, WaitsUntilTheHistoryIsOnDisk) {
  Run* run = LoadRun(1000, {1, 2});
  KeepLast(run, 1);
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
  Run* run = LoadRun(1000, {1, 2});
  KeepLast(run, 1);
  ios_[run]->errors["SaveRunRecord"] =
      MakeError(absl::StatusCode::kResourceExhausted, "NO_SPACE", "the disk is full");
  Record(run);
  RunCallbacks();
  EXPECT_THAT(Kept(*run), ElementsAre(2));
}

TEST_F(RetentionTest, AsksForAScanAfterAnEvictionThatFailed) {
  Run* run = LoadRun(1000, {1, 2});
  KeepLast(run, 1);
  ios_[run]->errors["Evict"] = absl::InternalError("broken");
  retention_.Apply(run);
  EXPECT_TRUE(retention_.IsWorking(*run));
  RunCallbacks();
  EXPECT_EQ(scans_, 1);
  EXPECT_FALSE(retention_.IsWorking(*run));
  EXPECT_TRUE(retention_.HasEvictions(*run)) << "its outcome is unknown before the scan";
}

TEST_F(RetentionTest, PredictsWhatTheNextCommitPushesOut) {
  Run* run = LoadRun(1000, {1, 2, 3});
  KeepLast(run, 3);
  EXPECT_THAT(retention_.PredictedVictims(*run), ElementsAre(1));
  retention_.SetPointers(run, PointerFiles{.holders = {1, 3}, .warnings = {}});
  EXPECT_THAT(retention_.PredictedVictims(*run), IsEmpty());
  KeepLast(run, 1);
  EXPECT_THAT(retention_.PredictedVictims(*run), ElementsAre(2, 3)) << "the next save takes over the pointer";
}

TEST_F(RetentionTest, KeepsWhatAnyOfThePoliciesInForceKeeps) {
  Run* run = LoadRun(1000, {1, 2, 3, 4});
  RetentionPolicy one, two;
  one.set_last(1);
  two.set_last(2);
  retention_.SetPolicies(run, {one, two});
  retention_.Apply(run);
  RunCallbacks();
  EXPECT_THAT(Kept(*run), ElementsAre(3, 4));
  EXPECT_EQ(retention_.KeptLast(*run), 2);
}

TEST_F(RetentionTest, ExplainsEachCheckpointOldestFirst) {
  Run* run = LoadRun(1000, {1, 2, 3, 4, 5});
  run->catalog.SetPinned(1, true);
  leased_ = {2};
  retention_.SetPointers(run, PointerFiles{.holders = {3}, .warnings = {}});
  RetentionPolicy policy;
  policy.set_last(1);
  absl::StatusOr<Retention::Keepers> keepers;
  retention_.Explain(run, policy,
                     [&](absl::StatusOr<Retention::Keepers> answer) { keepers = std::move(answer); });
  RunCallbacks();
  ASSERT_TRUE(keepers.ok());
  EXPECT_THAT(*keepers, ElementsAre(Pair(1, ElementsAre("pinned")), Pair(2, ElementsAre("being read")),
                                    Pair(3, ElementsAre("named by a pointer")), Pair(4, IsEmpty()),
                                    Pair(5, ElementsAre("last 1"))));
  EXPECT_THAT(Kept(*run), SizeIs(5)) << "explaining removes nothing";
}

class DeletionTest : public RetentionTest {
 protected:
  // The reason why Delete was refused; "" if the checkpoint was deleted.
  std::string Delete(Run* run, int64_t sequence, bool force = false) {
    absl::Status deleted = absl::InternalError("no answer");
    retention_.Delete(run, sequence, force, [&](absl::Status answer) { deleted = std::move(answer); });
    RunCallbacks();
    return deleted.ok() ? "" : ReasonOf(deleted);
  }
};

TEST_F(DeletionTest, RemovesAnOldCheckpointAndNoOther) {
  Run* run = LoadRun(1000, {1, 2, 3});
  EXPECT_EQ(Delete(run, 2), "");
  EXPECT_THAT(Kept(*run), ElementsAre(1, 3));
  EXPECT_EQ(Delete(run, 2), "NO_CHECKPOINT");
}

TEST_F(DeletionTest, NeverRemovesTheNewestUndamagedOne) {
  Run* run = LoadRun(1000, {1, 2, 3});
  run->catalog.SetDamage(3, storage::v1::Damage());
  EXPECT_EQ(Delete(run, 2, /*force=*/true), "CHECKPOINT_KEPT");
  EXPECT_EQ(Delete(run, 3), "") << "a damaged one may go";
  EXPECT_THAT(Kept(*run), ElementsAre(1, 2));
}

TEST_F(DeletionTest, RemovesPinnedAndPointedOnesOnlyByForce) {
  Run* run = LoadRun(1000, {1, 2, 3});
  run->catalog.SetPinned(1, true);
  retention_.SetPointers(run, PointerFiles{.holders = {2}, .warnings = {}});
  EXPECT_EQ(Delete(run, 1), "CHECKPOINT_KEPT");
  EXPECT_EQ(Delete(run, 2), "CHECKPOINT_KEPT");
  EXPECT_EQ(Delete(run, 1, /*force=*/true), "");
  EXPECT_THAT(Kept(*run), ElementsAre(2, 3));
  EXPECT_EQ(Delete(run, 2, /*force=*/true), "");
  EXPECT_THAT(Kept(*run), ElementsAre(3));
}

TEST_F(DeletionTest, KeepsACheckpointWhosePointerCannotBeMoved) {
  Run* run = LoadRun(1000, {1, 2});
  retention_.SetPointers(run, PointerFiles{.holders = {1}, .warnings = {}});
  ios_[run]->errors["ReleasePointers"] = MakeError(absl::StatusCode::kUnavailable, "IO_ERROR", "broken");
  EXPECT_EQ(Delete(run, 1, /*force=*/true), "IO_ERROR");
  EXPECT_THAT(Kept(*run), ElementsAre(1, 2));
  EXPECT_FALSE(retention_.HasEvictions(*run));
  EXPECT_EQ(Delete(run, 1), "CHECKPOINT_KEPT") << "the pointer still names it";
}

TEST_F(DeletionTest, KeepsACheckpointThatCannotBeUnpinned) {
  Run* run = LoadRun(1000, {1, 2});
  run->catalog.SetPinned(1, true);
  ios_[run]->errors["SetPinned"] = MakeError(absl::StatusCode::kUnavailable, "IO_ERROR", "broken");
  EXPECT_EQ(Delete(run, 1, /*force=*/true), "IO_ERROR");
  EXPECT_THAT(Kept(*run), ElementsAre(1, 2));
  EXPECT_TRUE(retention_.IsPinned(*run, 1));
  EXPECT_FALSE(retention_.HasEvictions(*run));
}

TEST_F(DeletionTest, NeverRemovesWhatIsReadOrResumedFrom) {
  Run* run = LoadRun(1000, {1, 2, 3});
  leased_ = {1};
  retention_.BeginResumeDecision(run, 2);
  EXPECT_EQ(Delete(run, 1, /*force=*/true), "BEING_READ");
  EXPECT_EQ(Delete(run, 2, /*force=*/true), "CHECKPOINT_KEPT");
  EXPECT_THAT(Kept(*run), ElementsAre(1, 2, 3));
}

TEST_F(DeletionTest, WaitsForTheHistoryThatIsBeingWritten) {
  Run* run = LoadRun(1000, {1, 2});
  Record(run);
  EXPECT_FALSE(history_.IsOnDisk(*run));
  EXPECT_EQ(Delete(run, 1), "");
  EXPECT_TRUE(history_.IsOnDisk(*run));
  EXPECT_THAT(Kept(*run), ElementsAre(2));
}

TEST_F(DeletionTest, IsRefusedWhenTheHistoryThatItWaitsForCannotBeWritten) {
  Run* run = LoadRun(1000, {1, 2});
  ios_[run]->errors["SaveRunRecord"] = absl::InternalError("broken");
  Record(run);
  EXPECT_EQ(Delete(run, 1), "CHECKPOINT_KEPT");
  EXPECT_THAT(Kept(*run), ElementsAre(1, 2));
}

TEST_F(DeletionTest, IsRefusedWhileTheHistoryCannotBeWritten) {
  Run* run = LoadRun(1000, {1, 2});
  ios_[run]->errors["SaveRunRecord"] = absl::InternalError("broken");
  Record(run);
  RunCallbacks();
  EXPECT_EQ(Delete(run, 1), "CHECKPOINT_KEPT") << "a late rank of its save would hear that it was lost";
}

TEST_F(DeletionTest, ReportsAnEvictionThatFailed) {
  Run* run = LoadRun(1000, {1, 2});
  ios_[run]->errors["Evict"] = MakeError(absl::StatusCode::kUnavailable, "IO_ERROR", "broken");
  EXPECT_EQ(Delete(run, 1), "IO_ERROR");
  EXPECT_EQ(scans_, 1);
}

class OverrideTest : public RetentionTest {};

TEST_F(OverrideTest, IsTheNextPolicyOnceItIsOnDiskAndEvictsNothingBefore) {
  Run* run = LoadRun(1000, {1, 2, 3});
  KeepLast(run, 3);
  RetentionPolicy strict;
  strict.set_last(1);
  bool set = false;
  retention_.SetOverride(run, strict, [&](absl::StatusOr<bool> answer) { set = answer.ok(); });
  RunCallbacks();
  EXPECT_TRUE(set);
  retention_.Apply(run);
  RunCallbacks();
  EXPECT_THAT(Kept(*run), ElementsAre(1, 2, 3)) << "it takes effect at the next commit";
  EXPECT_TRUE(IsSamePolicy(retention_.NextPolicy(*run), strict));
  EXPECT_THAT(retention_.PredictedVictims(*run), ElementsAre(1, 2, 3));
}

TEST_F(OverrideTest, IsUndoneWhenItCannotBeWritten) {
  Run* run = LoadRun(1000, {1});
  ios_[run]->errors["SaveRunRecord"] = absl::InternalError("broken");
  RetentionPolicy strict;
  strict.set_last(1);
  absl::Status refused;
  retention_.SetOverride(run, strict, [&](absl::StatusOr<bool> answer) { refused = answer.status(); });
  RunCallbacks();
  EXPECT_FALSE(refused.ok());
  EXPECT_FALSE(run->ledger->record().has_retention_override());
}

TEST_F(RetentionTest, TrashIsEmptiedAgainAfterAFailureAndForLateReaders) {
  Run* run = LoadRun(1000);
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
