// Whole histories, crashed after every operation and every message: by a power cut with each kind of loss,
// and by a kill. tests/testing/power_cut.h states what a power cut may lose, oracle.cc the promises.
//
// Each test prints how many crash points and states it tried, and fails when these are fewer than before:
// then the history no longer covers what it was written for.
#include <iostream>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/base/errors.h"
#include "storage/commit/local/root_store.h"
#include "tests/crash/explorer.h"
#include "tests/crash/history.h"

namespace ckptd {
namespace {

constexpr char kInflight[] = ".ckptd/nodes/local/inflight";

// With and without rename-exchange.
class PowerCutTest : public ::testing::TestWithParam<bool> {
 protected:
  std::unique_ptr<History> NewHistory(ExplorerOptions options = {}) const {
    return std::make_unique<History>(CrashDiskOptions{.can_exchange = GetParam()}, options);
  }
  static void ExpectPoints(const History& history, int points, int states) {
    const Explorer& explorer = history.explorer();
    std::cout << ::testing::UnitTest::GetInstance()->current_test_info()->name() << ": " << explorer.Summary()
              << std::endl;
    EXPECT_GE(explorer.points(), points);
    EXPECT_GE(explorer.states(), states);
  }
};

TEST_P(PowerCutTest, FirstSaveIsWholeOrInvisibleAndStaysOnceCommitted) {
  const auto history = NewHistory();
  history->Explore(true);  // The root's first daemon also creates its directories.
  history->Open();
  EXPECT_EQ(history->Save("step_1"), SaveVerdict::kCommitted);
  ExpectPoints(*history, 85, 350);
}

TEST_P(PowerCutTest, ResaveLeavesOldOrNewCheckpoint) {
  const auto history = NewHistory();
  history->Open();
  ASSERT_EQ(history->Save("step_1"), SaveVerdict::kCommitted);
  history->Explore(true);
  EXPECT_EQ(history->Save("step_1"), SaveVerdict::kCommitted);
  EXPECT_EQ(history->Save("step_1"), SaveVerdict::kCommitted);
  history->EmptyTrash();
  ExpectPoints(*history, 140, 680);
}

TEST_P(PowerCutTest, RetentionKeepsAtLeastNAndEvictedCheckpointsAreWholeOrGone) {
  const auto history = NewHistory();
  history->Open();
  history->Explore(true);
  for (int i = 1; i <= 4; ++i) history->SaveAndRetain(absl::StrCat("step_", i), 2);
  EXPECT_EQ(history->store().committed().size(), 2u);
  ExpectPoints(*history, 250, 1300);
}

TEST_P(PowerCutTest, PinsAndRunRecordHoldLastAcknowledgedValue) {
  const auto history = NewHistory();
  history->Open();
  ASSERT_EQ(history->Save("step_1"), SaveVerdict::kCommitted);
  history->Explore(true);
  history->SaveRunRecord("first");
  history->Pin("step_1", 1, true);
  history->SaveRunRecord("second");
  EXPECT_EQ(history->Publish(history->Begin("step_1")), SaveVerdict::kFailed) << "it is pinned";
  history->Pin("step_1", 1, false);
  EXPECT_EQ(history->Save("step_1"), SaveVerdict::kCommitted);
  history->SaveRunRecord("third");
  ExpectPoints(*history, 130, 900);
}

TEST_P(PowerCutTest, FailedSaveNeverReappears) {
  const auto history = NewHistory();
  history->Open();
  ASSERT_EQ(history->Save("step_1"), SaveVerdict::kCommitted);
  history->Explore(true);
  history->Discard(history->Begin("step_2", 1));  // One of two ranks.
  history->Discard(history->Begin("step_2"));     // Both ranks.
  for (const char* file : {"model_1.pt", ".part-00001.tmp", "manifest"}) {
    history->disk().FailNextSync(file);  // Once; a second sync would succeed although the bytes are gone.
    EXPECT_EQ(history->Save("step_2"), SaveVerdict::kFailed) << file;
  }
  EXPECT_EQ(history->Save("step_1"), SaveVerdict::kCommitted);
  ExpectPoints(*history, 260, 2400);
}

TEST_P(PowerCutTest, OlderSaveIsNeverPublishedOverNewerOne) {
  const auto history = NewHistory();
  history->Open();
  history->Explore(true);
  History::Begun slow = history->Begin("step_1");
  History::Begun other = history->Begin("step_2", 1);
  EXPECT_EQ(history->Save("step_1"), SaveVerdict::kCommitted);
  EXPECT_EQ(history->Publish(std::move(slow)), SaveVerdict::kFailed) << "superseded";
  history->Discard(other);
  ExpectPoints(*history, 130, 1000);
}

TEST_P(PowerCutTest, SaveOverEmptyDirectoryIsWholeOrInvisible) {
  const auto history = NewHistory();
  history->disk().Plant("step_1", FileType::kDirectory);
  history->Open();
  history->Explore(true);
  EXPECT_EQ(history->Save("step_1"), SaveVerdict::kCommitted);
  ExpectPoints(*history, 54, 310);
}

// Without exchange: the intent that completed one re-save must not be applied again after the tag was
// evicted, and bring the older generation back out of the trash.
TEST_P(PowerCutTest, EvictedCheckpointStaysGoneInAllGenerationsAfterResave) {
  const auto history = NewHistory();
  history->Open();
  ASSERT_EQ(history->Save("step_1"), SaveVerdict::kCommitted);
  ASSERT_EQ(history->Save("step_2"), SaveVerdict::kCommitted);
  ASSERT_EQ(history->Save("step_1"), SaveVerdict::kCommitted);
  history->Explore(true);
  history->Evict("step_1", 3);
  history->Evict("step_2", 2);
  history->EmptyTrash();  // Which removes and syncs the manifest before anything else of a checkpoint.
  ExpectPoints(*history, 46, 100);
}

// A checkpoint is at its tag or in the trash, whole, and pinned as soon as it was reported as back. What
// failed after its manifest was written is never offered.
TEST_P(PowerCutTest, CheckpointOnItsWayBackFromTrashIsNeverLost) {
  const auto history = NewHistory();
  history->Open();
  for (const char* tag : {"step_1", "step_2", "step_1"})
    ASSERT_EQ(history->Save(tag), SaveVerdict::kCommitted);
  history->Explore(true);
  history->Evict("step_2", 2);
  history->Undelete("step_2", 2);
  history->Pin("step_2", 2, false);
  history->Evict("step_1", 3);
  history->Undelete("step_1", 1);  // The generation that the re-save has replaced.
  history->EmptyTrash();
  ExpectPoints(*history, 40, 60);
}

TEST_P(PowerCutTest, TrashNeverOffersASaveThatFailedAfterItsManifest) {
  const auto history = NewHistory();
  history->Open();
  ASSERT_EQ(history->Save("step_1"), SaveVerdict::kCommitted);
  history->Explore(true);
  history->disk().FailNextSync("deep");
  EXPECT_EQ(history->Save("step_2"), SaveVerdict::kFailed);
  ExpectPoints(*history, 40, 100);
}

// The outcome is unknown until a scan decides.
TEST_P(PowerCutTest, OutcomeStaysOpenUntilScanWhenSyncAfterRenameFails) {
  for (const std::string parent : {"", kInflight}) {
    const auto history = NewHistory();
    history->Open();
    ASSERT_EQ(history->Save("step_1"), SaveVerdict::kCommitted);
    for (const std::string tag : {"step_1", "step_2"}) {
      SCOPED_TRACE(absl::StrCat(tag, ", ", parent.empty() ? "the root" : parent));
      history->Explore(true);
      History::Begun begun = history->Begin(tag);
      history->disk().FailNextSync(parent);
      ASSERT_EQ(history->Publish(std::move(begun)), SaveVerdict::kUnknown);
      EXPECT_EQ(ReasonOf(history->store().CreateInflight("x", 99, 4096).status()), "ROOT_READ_ONLY");
      history->Rescan();
      EXPECT_EQ(history->store().committed().rbegin()->second.summary.tag(), tag);
      history->Explore(false);
    }
    ExpectPoints(*history, 115, 600);
  }
}

TEST_P(PowerCutTest, PointerNamesExistingCheckpointNeverOlderThanCommitted) {
  const auto history = NewHistory();
  history->Open();
  history->Explore(true);
  History::Begun slow = history->Begin("step_1", -1, 2, true);
  for (const char* tag : {"step_2", "step_3"}) ASSERT_EQ(history->SavePointed(tag), SaveVerdict::kCommitted);
  ASSERT_EQ(history->Publish(std::move(slow)), SaveVerdict::kCommitted);
  ASSERT_EQ(history->Save("step_3"), SaveVerdict::kCommitted) << "a re-save takes over the pointer";
  history->Evict("step_2", 2);
  history->EmptyTrash();
  ExpectPoints(*history, 270, 1800);
}

// Recovery repairs a pointer after a crash between commit and pointer, and may itself be interrupted at any
// operation.
TEST_P(PowerCutTest, RecoveryThatWritesPointerCanBeInterrupted) {
  const auto history = NewHistory({.seeds = 1, .recovery_depth = 1, .seeds_in_recovery = 1});
  history->Open();
  ASSERT_EQ(history->SavePointed("step_1"), SaveVerdict::kCommitted);
  History::Begun next = history->Begin("step_2", -1, 2, true);
  history->Explore(true);
  EXPECT_EQ(history->Publish(std::move(next)), SaveVerdict::kCommitted);
  ExpectPoints(*history, 340, 110);
}

TEST_P(PowerCutTest, RecoveryCanBeInterruptedTwice) {
  const auto history = NewHistory({.seeds = 1, .recovery_depth = 2, .seeds_in_recovery = 1});
  history->Open();
  ASSERT_EQ(history->Save("step_1"), SaveVerdict::kCommitted);
  History::Begun part = history->Begin("step_3", 1);
  History::Begun whole = history->Begin("step_2");
  History::Begun again = history->Begin("step_1");
  history->Explore(true);
  EXPECT_EQ(history->Publish(std::move(again)), SaveVerdict::kCommitted);
  ExpectPoints(*history, 9000, 3000);
}

INSTANTIATE_TEST_SUITE_P(, PowerCutTest, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "WithExchange" : "WithoutExchange"; });

}  // namespace
}  // namespace ckptd
