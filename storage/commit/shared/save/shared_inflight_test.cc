// The directories of saves in flight in a root that several nodes share: power cuts and pauses at every step,
// and a fault at every call.
#include "storage/commit/shared/save/shared_inflight.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/base/errors.h"
#include "storage/commit/shared/run/look_again.h"
#include "storage/commit/shared/run/shared_layout.h"
#include "storage/commit/shared/save/shared_publish.h"
#include "tests/testing/crash_disk.h"
#include "tests/testing/faulty_file_system.h"
#include "tests/testing/shared_root_fixture.h"

namespace ckptd {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

const std::string kInflight = ".ckptd/shared/inflight";
const std::string kTrash = ".ckptd/shared/trash";

SharedLayout Open(CrashDisk& disk) { return OpenShared(disk, disk.root()); }

// The manifest of a save without a file.
Manifest EmptyManifest(const SharedInflight& save) {
  Manifest manifest;
  manifest.summary.set_format_version(1);
  manifest.summary.set_tag(save.tag);
  manifest.summary.set_sequence(save.sequence);
  manifest.summary.set_attempt(1);
  manifest.summary.set_ordinal(1);
  manifest.summary.set_world_size(1);
  manifest.summary.set_chunk_bytes(4096);
  return manifest;
}

SharedInflight PlantSave(CrashDisk& disk) {
  const SharedInflight save{"step_1", 5, "step_1.5.00000000000000aa"};
  PlantAt(disk, kInflight + "/" + save.name + "/.ckptd/manifest", "m");
  PlantAt(disk, kInflight + "/" + save.name + "/model/a.pt", "a");
  PlantAt(disk, kTrash, FileType::kDirectory);
  return save;
}

TEST(SharedInflightTest, MakesADurableDirectoryOfANewNameEachTime) {
  CrashDisk disk;
  const SharedLayout layout = Open(disk);
  std::vector<std::string> names;
  for (int i = 0; i < 3; ++i) {
    const auto save = MakeSharedInflight(layout, "step_1", 5);
    ASSERT_TRUE(save.ok()) << save.status();
    EXPECT_EQ(save->tag, "step_1");
    EXPECT_EQ(save->sequence, 5);
    EXPECT_THAT(names, Not(Contains(save->name)));
    names.push_back(save->name);
    for (const Loss loss : kLosses) {
      const auto left = disk.CutPower(loss, 1);
      EXPECT_TRUE(left->Exists(kInflight + "/" + save->name + "/.ckptd")) << NameOf(loss);
    }
  }
  EXPECT_EQ(disk.NamesIn(kInflight).size(), 3U);
}

// The daemon that made them was killed before it synced them.
TEST(SharedInflightTest, DirectoriesThatAnotherNodeMadeAreDurableToo) {
  CrashDisk disk;
  for (const std::string& made : {std::string(".ckptd"), std::string(".ckptd/shared"), kInflight, kTrash})
    ASSERT_TRUE(disk.MakeDir(disk.root(), made).ok());
  const SharedLayout layout = Open(disk);
  const auto save = MakeSharedInflight(layout, "step_1", 5);
  ASSERT_TRUE(save.ok()) << save.status();
  const auto left = disk.CutPower(Loss::kEverything, 1);
  EXPECT_TRUE(left->Exists(kInflight + "/" + save->name + "/.ckptd"));
  EXPECT_TRUE(left->Exists(kTrash));
}

TEST(SharedInflightTest, RefusesWhatIsNoTagOrNoSequence) {
  CrashDisk disk;
  const SharedLayout layout = Open(disk);
  EXPECT_EQ(ReasonOf(MakeSharedInflight(layout, "../x", 5).status()), "INVALID_TAG");
  EXPECT_EQ(ReasonOf(MakeSharedInflight(layout, "x", 0).status()), "INVALID_ARGUMENT");
  EXPECT_EQ(ReasonOf(OpenSharedInflight(layout, {"x", 1, "../trash"}).status()), "INVALID_ARGUMENT");
  EXPECT_EQ(ReasonOf(DiscardShared(layout, "../..")), "INVALID_ARGUMENT");
  RemovalBudget budget;
  EXPECT_EQ(ReasonOf(RemoveFromSharedTrash(layout, "../inflight", budget).status()), "INVALID_ARGUMENT");
  EXPECT_THAT(disk.NamesIn(kInflight), IsEmpty());
}

TEST(SharedInflightTest, AnyCallThatFailsIsAnErrorAndLeavesNothing) {
  for (const FsOp operation : {FsOp::kOpen, FsOp::kMakeDir, FsOp::kSync}) {
    const int faults = FailEachCall(
        operation, EIO, [](CrashDisk& disk) { PlantSave(disk); },
        [](FaultyFileSystem& faulty, CrashDisk& disk) {
          const auto layout = OpenSharedLayout(&faulty, disk.root());
          if (!layout.ok()) return;
          const auto save = MakeSharedInflight(*layout, "step_2", 6);
          if (!save.ok()) {
            EXPECT_EQ(ErrnoOf(save.status()), EIO) << save.status();
            EXPECT_THAT(disk.NamesIn(kInflight), ElementsAre("step_1.5.00000000000000aa"));
          } else {
            EXPECT_TRUE(
                disk.CutPower(Loss::kEverything, 1)->Exists(kInflight + "/" + save->name + "/.ckptd"));
          }
        });
    EXPECT_GE(faults, 1) << FsOpName(operation);
  }
}

// The next coordinator makes another directory, publishes it and removes the checkpoint again, while the
// first is paused in the same request. What the first one makes is never that save.
TEST(SharedInflightTest, CoordinatorThatWasPausedWhileItMadeADirectoryBringsNoNameBack) {
  for (int pause = 1;; ++pause) {
    CrashDisk disk;
    const SharedLayout first = Open(disk), second = Open(disk);
    SharedInflight published;
    absl::StatusOr<SharedInflight> late = absl::UnknownError("not made");
    const bool paused = RunPaused(
        disk, pause, [&] { late = MakeSharedInflight(first, "step_1", 5); },
        [&] {
          const auto save = MakeSharedInflight(second, "step_1", 5);
          ASSERT_TRUE(save.ok()) << save.status();
          published = *save;
          ASSERT_EQ(PublishShared(second, published, EmptyManifest(published), 2).value(), 0);
          ASSERT_TRUE(DiscardShared(second, published.name).ok()) << "it is no more in flight";
          EXPECT_TRUE(disk.Exists("step_1/.ckptd/manifest")) << "a checkpoint is discarded";
        });
    if (!paused) {
      EXPECT_GT(pause, 3);
      return;
    }
    ASSERT_TRUE(late.ok()) << late.status();
    EXPECT_THAT(disk.NamesIn(kInflight), ElementsAre(late->name));
    EXPECT_NE(late->name, published.name) << "pause " << pause;
    EXPECT_EQ(FindShared(second, published).value(), SharedPlace::kPublished);
  }
}

TEST(SharedInflightTest, MemberOpensWhatIsThereAndMakesNothing) {
  CrashDisk disk;
  const SharedInflight save = PlantSave(disk);
  const SharedLayout layout = Open(disk);
  EXPECT_TRUE(OpenSharedInflight(layout, save).ok());
  const SharedInflight other{"step_1", 5, "step_1.5.00000000000000bb"};
  EXPECT_EQ(ReasonOf(OpenSharedInflight(layout, other).status()), kLookAgain);
  EXPECT_FALSE(disk.Exists(kInflight + "/" + other.name));
}

TEST(SharedInflightTest, OnlyWhatAnotherNodeMayHaveChangedIsLookedAtAgain) {
  for (const auto& [error, reason] : std::vector<std::pair<int, std::string>>{
           {ENOENT, kLookAgain}, {ESTALE, kLookAgain}, {EIO, "IO_ERROR"}, {EACCES, "EACCES"}}) {
    CrashDisk disk;
    const SharedInflight save = PlantSave(disk);
    FaultyFileSystem faulty(&disk);
    const auto layout = OpenSharedLayout(&faulty, disk.root());
    ASSERT_TRUE(layout.ok());
    faulty.Fail({.op = FsOp::kOpen, .error = error});
    EXPECT_EQ(ReasonOf(OpenSharedInflight(*layout, save).status()), reason);
  }
}

TEST(SharedInflightTest, DiscardedSaveIsInTheTrashAfterACrashAtAnyStep) {
  CrashDisk disk;
  const SharedInflight save = PlantSave(disk);
  const SharedLayout layout = Open(disk);
  const auto left = CrashEverywhere(disk, [&] { ASSERT_TRUE(DiscardShared(layout, save.name).ok()); });
  EXPECT_GE(left.size(), 3 * kLosses.size());
  for (const auto& after : left) {
    const SharedLayout next = Open(*after);
    const bool in_flight = after->Exists(kInflight + "/" + save.name);
    EXPECT_NE(in_flight, after->Exists(kTrash + "/" + save.name)) << "in one place";
    EXPECT_TRUE(DiscardShared(next, save.name).ok());
    const auto cut = after->CutPower(Loss::kEverything, 1);
    EXPECT_EQ(FindShared(Open(*cut), save).value(), SharedPlace::kInTrash);
    EXPECT_EQ(cut->Content(kTrash + "/" + save.name + "/model/a.pt"), "a");
  }
}

TEST(SharedInflightTest, FailedDiscardIsAnError) {
  for (const FsOp operation : {FsOp::kRename, FsOp::kSync}) {
    const int faults = FailEachCall(
        operation, EIO, [](CrashDisk& disk) { PlantSave(disk); },
        [](FaultyFileSystem& faulty, CrashDisk& disk) {
          const auto layout = OpenSharedLayout(&faulty, disk.root());
          if (!layout.ok()) return;
          const absl::Status discarded = DiscardShared(*layout, "step_1.5.00000000000000aa");
          if (discarded.ok()) {
            EXPECT_FALSE(
                disk.CutPower(Loss::kEverything, 1)->Exists(kInflight + "/step_1.5.00000000000000aa"));
          } else {
            EXPECT_EQ(ErrnoOf(discarded), EIO);
          }
        });
    EXPECT_GE(faults, 1) << FsOpName(operation);
  }
}

TEST(SharedInflightTest, EmptiesTheTrashWithinABudget) {
  CrashDisk disk;
  const SharedInflight save = PlantSave(disk);
  const SharedLayout layout = Open(disk);
  ASSERT_TRUE(DiscardShared(layout, save.name).ok());
  RemovalBudget one;
  one.names = 1;
  EXPECT_FALSE(RemoveFromSharedTrash(layout, save.name, one).value());
  EXPECT_TRUE(disk.Exists(kTrash + "/" + save.name));
  RemovalBudget rest;
  EXPECT_TRUE(RemoveFromSharedTrash(layout, save.name, rest).value());
  EXPECT_THAT(disk.NamesIn(kTrash), IsEmpty());
  EXPECT_TRUE(RemoveFromSharedTrash(layout, save.name, rest).value()) << "a second time";
}

TEST(SharedInflightTest, TwoDaemonsEmptyTheTrashAtOnce) {
  for (int pause = 1;; ++pause) {
    CrashDisk disk;
    const SharedInflight save = PlantSave(disk);
    const SharedLayout first = Open(disk), second = Open(disk);
    ASSERT_TRUE(DiscardShared(first, save.name).ok());
    const bool paused = RunPaused(
        disk, pause,
        [&] {
          RemovalBudget budget;
          const auto gone = RemoveFromSharedTrash(first, save.name, budget);
          EXPECT_TRUE(gone.ok()) << "pause " << pause << ": " << gone.status();
        },
        [&] {
          RemovalBudget budget;
          const auto gone = RemoveFromSharedTrash(second, save.name, budget);
          EXPECT_TRUE(gone.ok() && *gone) << gone.status();
        });
    EXPECT_THAT(disk.NamesIn(kTrash), IsEmpty());
    if (!paused) {
      EXPECT_GT(pause, 2);
      return;
    }
  }
}

TEST(SharedInflightTest, TrashThatCannotBeReadIsNotGone) {
  for (const FsOp operation : {FsOp::kOpen, FsOp::kList, FsOp::kRemove}) {
    FailEachCall(
        operation, EIO, [](CrashDisk& disk) { PlantAt(disk, kTrash + "/step_1.5.00000000000000aa/f", "x"); },
        [](FaultyFileSystem& faulty, CrashDisk& disk) {
          const auto layout = OpenSharedLayout(&faulty, disk.root());
          if (!layout.ok()) return;
          RemovalBudget budget;
          const auto gone = RemoveFromSharedTrash(*layout, "step_1.5.00000000000000aa", budget);
          if (!gone.ok()) {
            EXPECT_EQ(ErrnoOf(gone.status()), EIO);
          } else if (*gone) {
            EXPECT_THAT(disk.NamesIn(kTrash), IsEmpty());
          }
        });
  }
}

}  // namespace
}  // namespace ckptd
