// Whole histories by the real engine with its real RootIo and pool, crashed after every operation of the disk
// and every message that a trainer receives; then the next daemon takes over what is left.
// tests/testing/power_cut.h states what a power cut may lose, oracle.h the promises. power_cut_test.cc does
// the same one layer below, with more kinds of loss and with interrupted recoveries.
//
// Threads write the parts, so the order of two ranks' operations differs from run to run. Each test prints
// how many crash points and states it tried, and fails when these are far fewer than before: then the history
// no longer covers what it was written for.
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/crash/disk_daemon.h"
#include "tests/crash/engine_history.h"
#include "tests/testing/crash_disk.h"

namespace ckptd {
namespace {

// With and without rename-exchange.
class EngineCrashTest : public ::testing::TestWithParam<bool> {
 protected:
  void JudgeAndExpect(int points, int states) {
    history_.Judge();
    std::cout << ::testing::UnitTest::GetInstance()->current_test_info()->name() << ": " << history_.Summary()
              << std::endl;
    EXPECT_GE(history_.points(), points);
    EXPECT_GE(history_.states(), states);
  }

  EngineHistory history_{CrashDiskOptions{.can_exchange = GetParam()}};
};

TEST_P(EngineCrashTest, FirstSaveOfOneRankIsWholeOrInvisible) {
  history_.Explore(true);  // The root's first daemon also creates its directories.
  history_.Start();
  history_.Save(history_.Launch("a", 1), "step_1");
  JudgeAndExpect(60, 90);
}

TEST_P(EngineCrashTest, FirstSaveOfTwoRanksIsWholeOrInvisible) {
  history_.Start();
  const auto trainers = history_.Launch("a");
  history_.Explore(true);
  history_.Save(trainers, "step_1");
  JudgeAndExpect(60, 150);
}

TEST_P(EngineCrashTest, ResaveLeavesOldOrNewCheckpoint) {
  history_.Start();
  const auto trainers = history_.Launch("a");
  history_.Save(trainers, "step_1");
  history_.Explore(true);
  history_.Save(trainers, "step_1", {.ordinal = 2});
  JudgeAndExpect(70, 170);
}

TEST_P(EngineCrashTest, OlderGenerationIsNeverPublishedOverNewerOne) {
  history_.Start();
  const auto trainers = history_.Launch("a");
  const auto older = history_.Begin(trainers, "step_1");
  const auto younger = history_.Begin(trainers, "step_1", {.ordinal = 2});
  history_.Explore(true);
  for (int rank = 0; rank < 2; ++rank) history_.Seal(younger, rank);
  for (int rank = 0; rank < 2; ++rank) history_.ExpectDurable(younger, rank);  // It waits, complete.
  for (int rank = 0; rank < 2; ++rank) history_.Seal(older, rank);
  history_.ExpectEnd(older, v1::COMMITTED);
  history_.ExpectEnd(younger, v1::COMMITTED);
  JudgeAndExpect(100, 400);
}

TEST_P(EngineCrashTest, RetentionKeepsAtLeastNAndEvictedCheckpointsAreWholeOrGone) {
  history_.Start();
  const auto trainers = history_.Launch("a", 1);
  history_.Explore(true);
  for (const char* tag : {"step_1", "step_2", "step_3"}) history_.Save(trainers, tag, {.num_kept_ckpts = 1});
  history_.ExpectListed({"step_3"});
  JudgeAndExpect(145, 280);
}

TEST_P(EngineCrashTest, FailedSaveNeverReappears) {
  history_.Start();
  const auto trainers = history_.Launch("a");
  history_.Save(trainers, "step_1");
  history_.Explore(true);
  const auto aborted = history_.Begin(trainers, "step_2");
  history_.Seal(aborted, 0);
  history_.ExpectDurable(aborted, 0);
  history_.Abort(aborted, 1);
  history_.ExpectEnd(aborted, v1::FAILED);
  history_.disk().FailNextSync("manifest");  // Every part is on disk, so recovery could publish it.
  const auto refused = history_.Begin(trainers, "step_3");
  for (int rank = 0; rank < 2; ++rank) history_.Seal(refused, rank);
  history_.ExpectEnd(refused, v1::FAILED);
  history_.ExpectListed({"step_1"});
  JudgeAndExpect(65, 220);
}

// The outcome is unknown until a scan decides.
TEST_P(EngineCrashTest, ScanDecidesIndeterminateSave) {
  history_.Start();
  const auto trainers = history_.Launch("a", 1);
  history_.Save(trainers, "step_1");
  history_.Explore(true);
  history_.disk().FailNextSync("");  // Fails the root's sync after the rename.
  const auto open = history_.Begin(trainers, "step_2");
  history_.Seal(open, 0);
  history_.ExpectEnd(open, v1::INDETERMINATE);
  history_.ExpectListed({"step_1", "step_2"});
  history_.Save(trainers, "step_3");
  JudgeAndExpect(80, 120);
}

TEST_P(EngineCrashTest, RetentionNeverEvictsPinnedCheckpoint) {
  history_.Start();
  const auto trainers = history_.Launch("a", 1);
  history_.Save(trainers, "step_1");
  history_.Explore(true);
  history_.Pin("step_1", 1, true);
  for (const char* tag : {"step_2", "step_3"}) history_.Save(trainers, tag, {.num_kept_ckpts = 1});
  history_.ExpectListed({"step_1", "step_3"});
  history_.Pin("step_1", 1, false);
  JudgeAndExpect(95, 190);
}

TEST_P(EngineCrashTest, SecondAttemptResumesFromNewestAndFencesFirst) {
  history_.Start();
  const auto first = history_.Launch("a");
  history_.Save(first, "step_1");
  history_.Explore(true);
  const auto left = history_.Begin(first, "step_2");
  history_.Seal(left, 0);
  history_.ExpectDurable(left, 0);
  const auto second = history_.Launch("b");
  history_.ExpectResume(second, 1);
  history_.ExpectEnd(left, v1::FAILED);
  history_.Save(second, "step_2");
  history_.ExpectListed({"step_1", "step_2"});
  JudgeAndExpect(100, 290);
}

TEST_P(EngineCrashTest, PointerNamesExistingCheckpoint) {
  history_.Start();
  const auto trainers = history_.Launch("a", 1);
  history_.Explore(true);
  for (const std::string tag : {"step_1", "step_2"})
    history_.Save(trainers, tag, {.num_kept_ckpts = 1, .pointers = {{"latest", tag}}});
  history_.ExpectListed({"step_2"});
  JudgeAndExpect(100, 200);
}

TEST_P(EngineCrashTest, SuspectCheckpointsEvictEachOtherAndNeverTheGoodOne) {
  history_.Start();
  const auto trainers = history_.Launch("a", 1);
  history_.Save(trainers, "step_1", {.num_kept_ckpts = 1, .pointers = {{"latest", "step_1"}}});
  history_.Explore(true);
  for (const std::string tag : {"step_2", "step_3"})
    history_.Save(trainers, tag, {.num_kept_ckpts = 1, .pointers = {{"latest", tag}}, .suspect = "NaN in w"});
  history_.ExpectListed({"step_1", "step_3"});
  JudgeAndExpect(70, 150);
}

TEST_P(EngineCrashTest, BestCheckpointStaysBesideTheLastOne) {
  v1::RetentionPolicy policy;
  policy.set_last(1);
  policy.set_best(1);
  policy.set_metric("loss");
  history_.Start();
  const auto trainers = history_.Launch("a", 1);
  history_.Save(trainers, "step_1", {.retention = policy, .metrics = {{"loss", 0.5}}});
  history_.Explore(true);
  history_.Save(trainers, "step_2", {.retention = policy, .metrics = {{"loss", 0.1}}});
  history_.ExpectListed({"step_2"});
  history_.Save(trainers, "step_3", {.retention = policy, .metrics = {{"loss", 0.9}}});
  history_.ExpectListed({"step_2", "step_3"});
  JudgeAndExpect(70, 150);
}

TEST_P(EngineCrashTest, CheckpointOnItsWayBackFromTheTrashIsNeverLost) {
  history_.KeepTrash();
  history_.Start();
  const auto trainers = history_.Launch("a", 1);
  for (const char* tag : {"step_1", "step_2"}) history_.Save(trainers, tag, {.num_kept_ckpts = 1});
  history_.ExpectInTrash({1});
  history_.Explore(true);
  history_.Undelete("step_1", 1);
  history_.ExpectListed({"step_1", "step_2"});
  history_.Save(trainers, "step_3", {.num_kept_ckpts = 1});
  history_.ExpectListed({"step_1", "step_3"});  // It has come back pinned.
  history_.ExpectInTrash({2});
  JudgeAndExpect(50, 90);
}

// One save is complete but not published, one lacks a rank, and the pointer is outdated.
TEST_P(EngineCrashTest, RecoveryCanBeInterrupted) {
  history_.Start();
  const auto trainers = history_.Launch("a");
  history_.Save(trainers, "step_1", {.pointers = {{"latest", "step_1"}}});
  const auto part = history_.Begin(trainers, "step_2");
  history_.Seal(part, 0);
  history_.ExpectDurable(part, 0);
  history_.KeepAfter("Sync", "/.ckptd/manifest");
  const auto whole = history_.Begin(trainers, "step_3", {.pointers = {{"latest", "step_3"}}});
  for (int rank = 0; rank < 2; ++rank) history_.Seal(whole, rank);
  history_.ExpectEnd(whole, v1::COMMITTED);
  history_.Explore(true);
  history_.Restart();
  history_.ExpectListed({"step_1", "step_3"});
  JudgeAndExpect(40, 30);
}

INSTANTIATE_TEST_SUITE_P(, EngineCrashTest, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "WithExchange" : "WithoutExchange"; });

}  // namespace
}  // namespace ckptd
