// What a node sees in a root that other nodes change.
#include "storage/commit/shared/shared_scan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "storage/base/errors.h"
#include "storage/commit/shared/run/look_again.h"
#include "storage/commit/shared/save/shared_inflight.h"
#include "storage/commit/shared/save/shared_manifest.h"
#include "storage/commit/shared/save/shared_publish.h"
#include "storage/commit/shared/save/shared_removal.h"
#include "storage/format/frame.h"
#include "storage/format/names.h"
#include "tests/testing/crash_disk.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/faulty_file_system.h"
#include "tests/testing/shared_root_fixture.h"

namespace ckptd {
namespace {

using ::testing::IsEmpty;

SharedInflight SaveOf(int64_t sequence, const std::string& tag) {
  return {tag, sequence, InflightName(tag, sequence, static_cast<uint64_t>(sequence))};
}

void PlantPublished(CrashDisk& disk, const SharedInflight& save) {
  PlantAt(disk, ".ckptd/shared/inflight/" + save.name + "/.ckptd", FileType::kDirectory);
  const SharedLayout layout = OpenShared(disk, disk.root());
  const auto digest = WriteSharedPart(disk, layout, save, SharedRecordOf(save, "a", {0}, 1, "i"));
  ASSERT_TRUE(digest.ok()) << digest.status();
  const auto parts = ReadNodeParts(layout, save, {{"a", *digest}});
  ASSERT_TRUE(parts.ok()) << parts.status();
  const LedgerFacts facts{.tag = save.tag, .sequence = save.sequence, .attempt = 1, .ordinal = 1};
  ASSERT_EQ(PublishShared(layout, save, BuildSharedManifest(facts, *parts).value(), 1).value(), 0);
}

void RemoveInPart(CrashDisk& disk, const SharedInflight& save) {
  RemovalBudget budget;
  budget.names = 1;
  ASSERT_FALSE(RemoveShared(OpenShared(disk, disk.root()), save.tag, save.sequence, budget).value());
}

// One directory is another user's.
class OthersDirectory : public FaultyFileSystem {
 public:
  OthersDirectory(FileSystem* base, std::string name) : FaultyFileSystem(base), name_(std::move(name)) {}
  absl::StatusOr<FileStat> Stat(Handle dir, std::string_view path) override {
    absl::StatusOr<FileStat> stat = FaultyFileSystem::Stat(dir, path);
    if (stat.ok() && path == name_) ++stat->uid;
    return stat;
  }

 private:
  const std::string name_;
};

class SharedScanTest : public ::testing::Test {
 protected:
  SharedScanTest() : layout_(OpenShared(disk_, disk_.root())), scanner_(&layout_, &clock_) {}
  std::string Looks() { return ReasonOf(scanner_.Look().status()); }
  SharedRootScan Scan() {
    auto scan = scanner_.Look();
    EXPECT_TRUE(scan.ok()) << scan.status();
    return scan.ok() ? *std::move(scan) : SharedRootScan();
  }

  CrashDisk disk_;
  FakeClock clock_;
  SharedLayout layout_;
  SharedScanner scanner_;
};

TEST_F(SharedScanTest, FindsEverythingAndChangesNothing) {
  PlantPublished(disk_, SaveOf(3, "step_1"));
  PlantPublished(disk_, SaveOf(4, "step_2"));
  PlantPublished(disk_, SaveOf(5, "step_3"));
  RemoveInPart(disk_, SaveOf(4, "step_2"));
  disk_.Plant("step_2/done", "what NxD calls finished");
  PlantAt(disk_, "theirs/done", "x");
  PlantAt(disk_, "notes/x", "mine");
  PlantAt(disk_, "another_root/.ckptd/shared/trash", FileType::kDirectory);
  PlantAt(disk_, ".ckptd/shared/inflight/" + SaveOf(7, "step_4").name + "/.ckptd", FileType::kDirectory);
  PlantAt(disk_, ".ckptd/shared/trash/" + SaveOf(9, "step_5").name, FileType::kDirectory);
  disk_.Plant(".ckptd/shared/trash/other", "x");
  disk_.Plant(".ckptd/shared/record.7", "x");
  const uint64_t before = disk_.Fingerprint();
  bool changed = false;
  disk_.OnChange([&](const std::string&) { changed = true; });

  const SharedRootScan scan = Scan();

  EXPECT_FALSE(changed);
  EXPECT_EQ(disk_.Fingerprint(), before);
  ASSERT_EQ(scan.checkpoints.size(), 2U);
  EXPECT_EQ(scan.checkpoints.at(3).summary.tag(), "step_1");
  EXPECT_EQ(scan.checkpoints.at(5).summary.tag(), "step_3");
  EXPECT_GT(scan.checkpoints.at(5).summary.size_bytes(), 0);
  EXPECT_THAT(scan.damaged, IsEmpty());
  ASSERT_EQ(scan.half_removed.size(), 1U);
  EXPECT_EQ(scan.half_removed[0].tag, "step_2");
  EXPECT_EQ(scan.half_removed[0].sequence, 4);
  ASSERT_EQ(scan.in_flight.size(), 1U);
  EXPECT_EQ(scan.in_flight[0].name, SaveOf(7, "step_4").name);
  ASSERT_EQ(scan.in_trash.size(), 1U);
  EXPECT_EQ(scan.in_trash[0].sequence, 9);
  ASSERT_EQ(scan.foreign.size(), 1U);
  EXPECT_EQ(scan.foreign[0].tag, "theirs");
  EXPECT_EQ(scan.highest_sequence, 9);
  EXPECT_EQ(scan.highest_term, 7);
}

TEST_F(SharedScanTest, HighestSequenceIsOfWhateverIsThere) {
  EXPECT_EQ(Scan().highest_sequence, 0);
  PlantPublished(disk_, SaveOf(5, "step_1"));
  EXPECT_EQ(Scan().highest_sequence, 5);
  RemoveInPart(disk_, SaveOf(5, "step_1"));
  EXPECT_EQ(Scan().highest_sequence, 5);
  PlantAt(disk_, ".ckptd/shared/inflight/" + SaveOf(6, "step_1").name, FileType::kDirectory);
  EXPECT_EQ(Scan().highest_sequence, 6);
  EXPECT_EQ(Scan().highest_term, 0);
  PlantAt(disk_, ".ckptd/shared/term.3", FileType::kDirectory);
  EXPECT_EQ(Scan().highest_term, 3);
}

// ---- damage

TEST_F(SharedScanTest, WhatGoesOnLookingDamagedIsDamaged) {
  PlantPublished(disk_, SaveOf(3, "step_1"));
  PlantAt(disk_, "step_2/.ckptd/manifest", "damaged");
  EXPECT_EQ(Looks(), kLookAgain);
  clock_.Advance(kStaleness - std::chrono::milliseconds(1));
  EXPECT_EQ(Looks(), kLookAgain);
  clock_.Advance(std::chrono::milliseconds(1));
  const SharedRootScan scan = Scan();
  ASSERT_EQ(scan.damaged.size(), 1U);
  EXPECT_EQ(scan.damaged[0].tag, "step_2");
  EXPECT_EQ(ReasonOf(scan.damaged[0].status), "CORRUPT_MANIFEST");
  EXPECT_TRUE(scan.checkpoints.contains(3));
  EXPECT_EQ(Scan().damaged.size(), 1U) << "and stays so";
}

TEST_F(SharedScanTest, CheckpointThatLostItsManifestIsDamaged) {
  PlantPublished(disk_, SaveOf(3, "step_1"));
  ASSERT_TRUE(disk_.Remove(disk_.root(), "step_1/.ckptd/manifest", FileType::kRegular).ok());
  EXPECT_EQ(Looks(), kLookAgain);
  clock_.Advance(kStaleness);
  const SharedRootScan scan = Scan();
  ASSERT_EQ(scan.damaged.size(), 1U);
  EXPECT_EQ(scan.damaged[0].tag, "step_1");
}

TEST_F(SharedScanTest, WhatLooksDamagedWhileItIsChangedIsNot) {
  PlantAt(disk_, "step_1/.ckptd/manifest", "not written yet");
  EXPECT_EQ(Looks(), kLookAgain);
  clock_.Advance(kStaleness);
  ASSERT_TRUE(RemoveTree(disk_, disk_.root(), "step_1").ok());
  PlantPublished(disk_, SaveOf(3, "step_1"));
  EXPECT_THAT(Scan().damaged, IsEmpty());
  EXPECT_TRUE(Scan().checkpoints.contains(3));
}

TEST_F(SharedScanTest, SuspicionOfAnotherDirectoryOrForAnotherReasonBeginsAnew) {
  PlantAt(disk_, "step_1/.ckptd/manifest", "damaged");
  EXPECT_EQ(Looks(), kLookAgain);
  clock_.Advance(kStaleness);
  ASSERT_TRUE(RemoveTree(disk_, disk_.root(), "step_1").ok());
  PlantAt(disk_, "step_1/.ckptd/manifest", "damaged");
  EXPECT_EQ(Looks(), kLookAgain) << "it is another directory";
  clock_.Advance(kStaleness);
  disk_.Plant("step_1/.ckptd/manifest", std::string(5000, 'x'));
  EXPECT_EQ(Looks(), kLookAgain) << "it is damaged otherwise";
  clock_.Advance(kStaleness);
  EXPECT_EQ(Scan().damaged.size(), 1U);
}

TEST_F(SharedScanTest, LaterFormatIsAnError) {
  std::string newer = "CKPTDMAN";
  AppendU32(newer, 2);
  newer.resize(32, '\0');
  AppendU32(newer, Crc32cOf(newer));
  newer.resize(4096, '\0');
  PlantAt(disk_, "step_1/.ckptd/manifest", newer);
  EXPECT_EQ(Looks(), kLookAgain);
  clock_.Advance(kStaleness);
  EXPECT_EQ(Looks(), "NEWER_FORMAT");
}

// A call that fails because of another node's change is made again; any other error is the answer. Neither
// takes a checkpoint off the list, nor calls it damaged.
TEST_F(SharedScanTest, FailedCallIsNeitherDamageNorAbsence) {
  for (const int error : {EIO, EMFILE, ETIMEDOUT, ESTALE, ENOENT}) {
    for (const FsOp operation : {FsOp::kOpen, FsOp::kList, FsOp::kStat, FsOp::kReadAt}) {
      const int faults = FailEachCall(
          operation, error,
          [](CrashDisk& disk) {
            PlantPublished(disk, SaveOf(3, "step_1"));
            PlantPublished(disk, SaveOf(4, "step_2"));
            RemoveInPart(disk, SaveOf(4, "step_2"));
            PlantAt(disk, "notes/x", "mine");
          },
          [&](FaultyFileSystem& faulty, CrashDisk& disk) {
            const auto layout = OpenSharedLayout(&faulty, disk.root());
            if (!layout.ok()) return;
            FakeClock clock;
            SharedScanner scanner(&*layout, &clock);
            const auto scan = scanner.Look();
            const bool changing = error == ESTALE || error == ENOENT;
            if (!scan.ok()) {
              EXPECT_EQ(ReasonOf(scan.status()), changing ? kLookAgain : ReasonOf(ErrnoError(error, "")))
                  << scan.status();
              clock.Advance(kStaleness);
              EXPECT_TRUE(scanner.Look().ok()) << "a second time";
              return;
            }
            EXPECT_THAT(scan->damaged, IsEmpty());
            EXPECT_TRUE(scan->checkpoints.contains(3)) << FsOpName(operation) << " " << error;
            EXPECT_EQ(scan->half_removed.size(), 1U) << FsOpName(operation) << " " << error;
          });
      EXPECT_GE(faults, 1) << FsOpName(operation);
    }
  }
}

TEST_F(SharedScanTest, FailureThatStaysIsTheAnswerAtLast) {
  FaultyFileSystem faulty(&disk_);
  const auto layout = OpenSharedLayout(&faulty, disk_.root());
  ASSERT_TRUE(layout.ok());
  SharedScanner scanner(&*layout, &clock_);
  faulty.Fail({.op = FsOp::kList, .nth = FsFault::kEvery, .error = ESTALE});
  EXPECT_EQ(ReasonOf(scanner.Look().status()), kLookAgain);
  clock_.Advance(kStaleness - std::chrono::milliseconds(1));
  EXPECT_EQ(ReasonOf(scanner.Look().status()), kLookAgain);
  clock_.Advance(std::chrono::milliseconds(1));
  EXPECT_EQ(ErrnoOf(scanner.Look().status()), ESTALE);
  faulty.ClearFaults();
  EXPECT_TRUE(scanner.Look().ok());
  faulty.Fail({.op = FsOp::kList, .nth = FsFault::kEvery, .error = ESTALE});
  EXPECT_EQ(ReasonOf(scanner.Look().status()), kLookAgain) << "its time begins anew";
}

// Another node publishes, and removes, at any moment of a look.
TEST_F(SharedScanTest, LookDuringAPublicationAndARemovalSeesAllOrNothing) {
  for (const bool removes : {false, true}) {
    CrashDisk disk;
    PlantPublished(disk, SaveOf(3, "step_1"));
    const SharedInflight save = SaveOf(5, "step_2");
    if (removes) PlantPublished(disk, save);
    const SharedLayout layout = OpenShared(disk, disk.root());
    int looks = 0;
    bool looking = false;
    disk.OnChange([&](const std::string&) {
      if (looking) return;
      looking = true;
      FakeClock clock;
      SharedScanner scanner(&layout, &clock);
      const auto scan = scanner.Look();
      ASSERT_TRUE(scan.ok()) << scan.status();
      EXPECT_TRUE(scan->checkpoints.contains(3));
      EXPECT_THAT(scan->damaged, IsEmpty());
      ++looks;
      looking = false;
    });
    if (removes) {
      RemovalBudget budget;
      EXPECT_TRUE(RemoveShared(layout, save.tag, save.sequence, budget).value());
    } else {
      PlantPublished(disk, save);
    }
    disk.OnChange(nullptr);
    EXPECT_GT(looks, 5);
  }
}

// The other way round: each call of a look comes after another node's change.
TEST_F(SharedScanTest, ChangeDuringALookIsLookedAtAgain) {
  for (const bool removes : {false, true}) {
    for (int at = 1;; ++at) {
      CrashDisk disk;
      PlantPublished(disk, SaveOf(3, "step_1"));
      const SharedInflight save = SaveOf(5, "step_2");
      if (removes) PlantPublished(disk, save);
      FaultyFileSystem faulty(&disk);
      const SharedLayout layout = OpenShared(faulty, disk.root());
      FakeClock clock;
      SharedScanner scanner(&layout, &clock);
      int calls = 0;
      faulty.SetHook([&](const FsCall&) {
        if (++calls != at) return;
        if (!removes) return PlantPublished(disk, save);
        RemovalBudget budget;
        EXPECT_TRUE(RemoveShared(OpenShared(disk, disk.root()), "step_2", 5, budget).value());
      });
      const auto scan = scanner.Look();
      faulty.SetHook(nullptr);
      if (scan.ok()) {
        EXPECT_TRUE(scan->checkpoints.contains(3)) << at;
        EXPECT_THAT(scan->damaged, IsEmpty()) << at;
      } else {
        EXPECT_EQ(ReasonOf(scan.status()), kLookAgain) << at << ": " << scan.status();
      }
      if (calls < at) {
        EXPECT_GT(at, 8);
        break;
      }
      EXPECT_EQ(scanner.Look()->checkpoints.contains(5), !removes) << at;
    }
  }
}

// Each publication of a save looks for them, and all nodes scan the root if it finds some.
TEST_F(SharedScanTest, DirectoryThatThisUserMayNotReadIsANewCheckpointOnlyIfItIsTheirs) {
  PlantAt(disk_, "lost+found/x", "what fsck has found");
  PlantAt(disk_, "step_1/.ckptd/manifest", "unreadable");
  OthersDirectory fs(&disk_, "lost+found");
  fs.Fail({.op = FsOp::kOpen, .path = "lost+found/", .nth = FsFault::kEvery, .error = EACCES});
  fs.Fail({.op = FsOp::kOpen, .path = "step_1/", .nth = FsFault::kEvery, .error = EACCES});
  EXPECT_TRUE(FindNewCheckpoints(fs, disk_.root(), {}).any);
  EXPECT_FALSE(FindNewCheckpoints(fs, disk_.root(), {"step_1"}).any);
}

}  // namespace
}  // namespace ckptd
