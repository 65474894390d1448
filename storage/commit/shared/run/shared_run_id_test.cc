// The id of a run in a shared root: power cuts and pauses at every step, and a fault at every call.
#include "storage/commit/shared/run/shared_run_id.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/base/errors.h"
#include "tests/testing/crash_disk.h"
#include "tests/testing/faulty_file_system.h"
#include "tests/testing/shared_root_fixture.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::MatchesRegex;

const std::string kRun = ".ckptd/shared/run";

std::string IdOf(CrashDisk& disk) {
  const SharedLayout layout = OpenShared(disk, disk.root());
  const auto id = SharedRunId(layout);
  EXPECT_TRUE(id.ok()) << id.status();
  return id.value_or("");
}

TEST(SharedRunIdTest, IsMadeOnceAndDurable) {
  CrashDisk disk;
  const std::string id = IdOf(disk);
  EXPECT_THAT(id, MatchesRegex("[0-9a-f]+"));
  EXPECT_EQ(id.size(), 32U);
  EXPECT_EQ(IdOf(disk), id);
  for (const Loss loss : kLosses) EXPECT_EQ(IdOf(*disk.CutPower(loss, 1)), id) << NameOf(loss);
}

TEST(SharedRunIdTest, CopyGetsAnIdOfItsOwn) {
  CrashDisk disk;
  EXPECT_EQ(ReasonOf(RenewSharedRunId(&disk, disk.root()).status()), "ROOT_UNREADABLE")
      << "it is no such root";
  const std::string id = IdOf(disk);
  const auto renewed = RenewSharedRunId(&disk, disk.root());
  ASSERT_TRUE(renewed.ok()) << renewed.status();
  EXPECT_EQ(renewed->before, id);
  EXPECT_NE(renewed->after, id);
  EXPECT_THAT(disk.NamesIn(kRun), ElementsAre(renewed->after));
  for (const Loss loss : kLosses) EXPECT_EQ(IdOf(*disk.CutPower(loss, 1)), renewed->after) << NameOf(loss);
}

TEST(SharedRunIdTest, TwoRootsHaveTwoIds) {
  CrashDisk one, other;
  EXPECT_NE(IdOf(one), IdOf(other));
}

TEST(SharedRunIdTest, DaemonThatIsPausedAnywhereReplacesNoId) {
  int pauses = 0;
  for (int pause = 1;; ++pause) {
    CrashDisk disk;
    const SharedLayout first = OpenShared(disk, disk.root()), second = OpenShared(disk, disk.root());
    std::string id;
    absl::StatusOr<std::string> late = absl::UnknownError("not asked");
    const bool paused = RunPaused(
        disk, pause, [&] { late = SharedRunId(first); }, [&] { id = SharedRunId(second).value_or("error"); });
    if (!paused) break;
    ++pauses;
    ASSERT_TRUE(late.ok()) << late.status();
    EXPECT_EQ(*late, id);
    EXPECT_THAT(disk.NamesIn(kRun), ElementsAre(id));
  }
  EXPECT_GE(pauses, 4);
}

TEST(SharedRunIdTest, CrashAtAnyStepLeavesARootThatHasOneId) {
  CrashDisk disk;
  OpenShared(disk, disk.root());
  const auto left = CrashEverywhere(disk, [&] { IdOf(disk); });
  EXPECT_GE(left.size(), 4U);
  for (const auto& after : left) {
    const std::string id = IdOf(*after);
    EXPECT_EQ(IdOf(*after->CutPower(Loss::kEverything, 1)), id);
  }
}

TEST(SharedRunIdTest, AnyCallThatFailsIsAnErrorAndTheNextTryHasAnId) {
  for (const FsOp operation : {FsOp::kOpen, FsOp::kMakeDir, FsOp::kSync, FsOp::kRename, FsOp::kList}) {
    const int faults = FailEachCall(
        operation, EIO, [](CrashDisk&) {},
        [](FaultyFileSystem& faulty, CrashDisk& disk) {
          const auto layout = OpenSharedLayout(&faulty, disk.root());
          if (!layout.ok()) return;
          const auto id = SharedRunId(*layout);
          if (!id.ok()) {
            EXPECT_EQ(ErrnoOf(id.status()), EIO) << id.status();
          }
          const std::string later = IdOf(disk);
          if (id.ok()) {
            EXPECT_EQ(later, *id);
          }
        });
    EXPECT_GE(faults, 1) << FsOpName(operation);
  }
}

TEST(SharedRunIdTest, DirectoryThatExistsAndCannotBeFoundIsLookedAtAgain) {
  for (const char* name : {".ckptd", ".ckptd/shared", ".ckptd/shared/inflight", ".ckptd/shared/trash"}) {
    CrashDisk disk;
    FaultyFileSystem faulty(&disk);
    faulty.Fail({.op = FsOp::kMakeDir, .path = name, .nth = FsFault::kEvery, .error = EEXIST});
    EXPECT_EQ(ReasonOf(OpenSharedLayout(&faulty, disk.root()).status()), "LOOK_AGAIN") << name;
    faulty.ClearFaults();
    EXPECT_TRUE(OpenSharedLayout(&faulty, disk.root()).ok()) << name;
  }
}

TEST(SharedRunIdTest, WhatAnotherProgramHasPutThereIsNoId) {
  CrashDisk disk;
  PlantAt(disk, kRun + "/notes", "x");
  const SharedLayout layout = OpenShared(disk, disk.root());
  const auto id = SharedRunId(layout);
  EXPECT_EQ(ReasonOf(id.status()), "ROOT_UNREADABLE");
  EXPECT_THAT(std::string(id.status().message()), ::testing::HasSubstr("notes"));
}

// As a node may see it whose view of the names is old.
TEST(SharedRunIdTest, DirectoryThatLooksEmptyIsLookedAtAgain) {
  CrashDisk disk;
  PlantAt(disk, kRun, FileType::kDirectory);
  const SharedLayout layout = OpenShared(disk, disk.root());
  EXPECT_EQ(ReasonOf(SharedRunId(layout).status()), "LOOK_AGAIN");
  EXPECT_TRUE(disk.NamesIn(kRun).empty()) << "another daemon's id is not replaced";
}

}  // namespace
}  // namespace ckptd
