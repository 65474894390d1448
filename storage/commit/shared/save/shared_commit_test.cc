// Publishing and removing checkpoints in a root that several nodes share: power cuts at every step, and
// coordinators that are paused at every step while others act.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "storage/base/errors.h"
#include "storage/commit/checkpoint/checkpoint_dir.h"
#include "storage/commit/shared/run/shared_layout.h"
#include "storage/commit/shared/save/shared_publish.h"
#include "storage/commit/shared/save/shared_removal.h"
#include "storage/format/manifest.h"
#include "storage/format/names.h"
#include "tests/testing/crash_disk.h"
#include "tests/testing/faulty_file_system.h"
#include "tests/testing/shared_root_fixture.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::vector<std::string> kFiles = {"model/rank_0.pt", "model/rank_1.pt", "state.pt"};

std::string ContentOf(int64_t sequence, const std::string& path) {
  return path + " of " + std::to_string(sequence);
}

Manifest ManifestOf(const SharedInflight& save) {
  Manifest manifest;
  manifest.summary.set_format_version(1);
  manifest.summary.set_tag(save.tag);
  manifest.summary.set_sequence(save.sequence);
  manifest.summary.set_run_id("run");
  manifest.summary.set_attempt(1);
  manifest.summary.set_ordinal(1);
  manifest.summary.set_world_size(2);
  manifest.summary.set_chunk_bytes(1 << 20);
  int64_t size = 0;
  for (const std::string& path : kFiles) {
    storage::v1::FileRecord& file = *manifest.body.add_files();
    file.set_path(path);
    file.set_size_bytes(static_cast<int64_t>(ContentOf(save.sequence, path).size()));
    file.add_chunk_crc32c(0);
    size += file.size_bytes();
  }
  manifest.summary.set_file_count(manifest.body.files_size());
  manifest.summary.set_size_bytes(size);
  return manifest;
}

SharedInflight SaveOf(int64_t sequence, const std::string& tag = "step_1") {
  return {tag, sequence, InflightName(tag, sequence, static_cast<uint64_t>(sequence))};
}

// A daemon that may coordinate: its handles on a disk that it shares with others.
class Coordinator {
 public:
  Coordinator(CrashDisk* disk, int64_t term) : term_(term) {
    auto layout = OpenSharedLayout(disk, disk->root());
    EXPECT_TRUE(layout.ok()) << layout.status();
    if (layout.ok()) layout_ = *std::move(layout);
  }
  const SharedLayout& layout() const { return layout_; }
  absl::StatusOr<int64_t> Publish(const SharedInflight& save, int64_t replaces = 0) {
    return PublishShared(layout_, save, ManifestOf(save), term_, replaces);
  }
  absl::StatusOr<SharedPlace> Find(const SharedInflight& save) { return FindShared(layout_, save); }
  absl::Status Remove(const SharedInflight& save, uint64_t inode = 0) {
    for (int i = 0; i < 100; ++i) {
      RemovalBudget budget;
      budget.names = 2;
      const absl::StatusOr<bool> gone = RemoveShared(layout_, save.tag, save.sequence, budget, inode);
      if (!gone.ok()) return gone.status();
      if (*gone) return absl::OkStatus();
    }
    return absl::InternalError("it is never removed");
  }
  // What a new coordinator does with a save that the ledger says is being published.
  absl::Status GoOn(const SharedInflight& save) {
    const absl::StatusOr<SharedPlace> place = Find(save);
    if (!place.ok()) return place.status();
    if (*place == SharedPlace::kPublished) return absl::OkStatus();
    if (*place != SharedPlace::kInFlight) return absl::AbortedError("it is not in flight");
    return Publish(save).status();
  }

 private:
  SharedLayout layout_;
  const int64_t term_;
};

class SharedCommitTest : public ::testing::Test {
 protected:
  // All parts are durable, as the nodes have told the ledger.
  static void PlantInFlight(CrashDisk& disk, const SharedInflight& save) {
    const std::string folder = ".ckptd/shared/inflight/" + save.name + "/";
    PlantAt(disk, folder + ".ckptd", FileType::kDirectory);
    for (const std::string& path : kFiles) PlantAt(disk, folder + path, ContentOf(save.sequence, path));
  }
  static void PlantPublished(CrashDisk& disk, const SharedInflight& save) {
    PlantInFlight(disk, save);
    Coordinator coordinator(&disk, 1);
    ASSERT_EQ(coordinator.Publish(save).value(), 0);
  }
  static bool IsCheckpoint(CrashDisk& disk, const std::string& tag) {
    return ReadSummary(disk, disk.root(), tag).ok();
  }
  // Whoever finds a manifest finds all of its files.
  static void ExpectWholeOrNone(CrashDisk& disk, const std::string& tag) {
    const auto summary = ReadSummary(disk, disk.root(), tag);
    if (!summary.ok()) {
      EXPECT_TRUE(IsMissing(summary.status())) << summary.status();
      return;
    }
    EXPECT_TRUE(ReadWholeManifest(disk, disk.root(), tag).ok());
    for (const std::string& path : kFiles) {
      EXPECT_EQ(disk.Content(tag + "/" + path), ContentOf(summary->sequence(), path)) << path;
    }
  }
  static void ExpectWhole(CrashDisk& disk, const SharedInflight& save) {
    const auto summary = ReadSummary(disk, disk.root(), save.tag);
    ASSERT_TRUE(summary.ok()) << summary.status();
    EXPECT_EQ(summary->sequence(), save.sequence);
    ExpectWholeOrNone(disk, save.tag);
  }
};

TEST_F(SharedCommitTest, PublishesOverNothingAndOverAnEmptyDirectory) {
  for (const bool empty_directory : {false, true}) {
    CrashDisk disk;
    if (empty_directory) PlantAt(disk, "step_1", FileType::kDirectory);
    const SharedInflight save = SaveOf(5);
    PlantInFlight(disk, save);
    Coordinator coordinator(&disk, 1);
    EXPECT_EQ(coordinator.Find(save).value(), SharedPlace::kInFlight);
    EXPECT_EQ(coordinator.Publish(save).value(), 0);
    EXPECT_EQ(coordinator.Find(save).value(), SharedPlace::kPublished);
    ExpectWhole(disk, save);
    EXPECT_THAT(disk.NamesIn(".ckptd/shared/inflight"), IsEmpty());
    EXPECT_EQ(coordinator.Publish(save).value(), 0) << "a second time";
    ExpectWhole(*disk.CutPower(Loss::kEverything, 1), save);
  }
}

TEST_F(SharedCommitTest, AfterACrashAtAnyStepTheNextCoordinatorPublishes) {
  const SharedInflight save = SaveOf(5);
  std::vector<std::unique_ptr<CrashDisk>> left;
  CrashDisk disk;
  PlantInFlight(disk, save);
  Coordinator coordinator(&disk, 1);
  disk.OnChange([&](const std::string&) {
    for (const Loss loss : kLosses) left.push_back(disk.CutPower(loss, left.size()));
    left.push_back(disk.Kill());
  });
  ASSERT_EQ(coordinator.Publish(save).value(), 0);
  ASSERT_GT(left.size(), 5 * kLosses.size());
  for (const auto& after : left) {
    ExpectWholeOrNone(*after, save.tag);
    Coordinator next(after.get(), 2);
    const absl::Status published = next.GoOn(save);
    EXPECT_TRUE(published.ok()) << published;
    ExpectWhole(*after->CutPower(Loss::kEverything, 1), save);
  }
}

// What stands at the tag keeps its place, and the save can never take it.
TEST_F(SharedCommitTest, GivesUpWhereSomethingForeignHasThePlace) {
  const SharedInflight save = SaveOf(5);
  CrashDisk disk;
  PlantInFlight(disk, save);
  PlantAt(disk, "step_1/notes.txt", "mine");
  Coordinator coordinator(&disk, 1);
  const auto published = coordinator.Publish(save);
  EXPECT_EQ(ReasonOf(published.status()), "TAG_FOREIGN");
  EXPECT_EQ(disk.Content("step_1/notes.txt"), "mine");
  const auto after = disk.CutPower(Loss::kEverything, 1);
  EXPECT_EQ(coordinator.Find(save).value(), SharedPlace::kInTrash);
  Coordinator next(after.get(), 2);
  EXPECT_EQ(next.Find(save).value(), SharedPlace::kInTrash);
  EXPECT_FALSE(next.Publish(save).ok());
}

TEST_F(SharedCommitTest, NamesTheCheckpointThatHasToGoFirst) {
  const SharedInflight old = SaveOf(3), save = SaveOf(5);
  CrashDisk disk;
  PlantPublished(disk, old);
  PlantInFlight(disk, save);
  Coordinator coordinator(&disk, 1);
  EXPECT_EQ(coordinator.Publish(save).value(), 3);
  ExpectWhole(disk, old);
  RemovalBudget budget;
  budget.names = 1;
  EXPECT_FALSE(RemoveShared(coordinator.layout(), "step_1", 3, budget).value());
  EXPECT_EQ(coordinator.Publish(save).value(), 3) << "it is half removed";
  EXPECT_TRUE(coordinator.Remove(old).ok());
  EXPECT_EQ(coordinator.Publish(save).value(), 0);
  ExpectWhole(disk, save);
}

// The manifest has the pointers that the save takes over from what it replaces.
TEST_F(SharedCommitTest, WritesNoManifestWhileACheckpointThatItDoesNotReplaceHasTheTag) {
  CrashDisk disk;
  PlantPublished(disk, SaveOf(1));
  PlantInFlight(disk, SaveOf(2));
  Coordinator coordinator(&disk, 1);
  const std::string in_flight = ".ckptd/shared/inflight/" + SaveOf(2).name;
  EXPECT_EQ(coordinator.Publish(SaveOf(2)).value(), 1);
  EXPECT_FALSE(IsCheckpoint(disk, in_flight));
  EXPECT_EQ(coordinator.Publish(SaveOf(2), /*replaces=*/1).value(), 1);
  EXPECT_TRUE(IsCheckpoint(disk, in_flight)) << "it is there before the other one goes";
  ASSERT_TRUE(coordinator.Remove(SaveOf(1)).ok());
  EXPECT_EQ(coordinator.Publish(SaveOf(2), /*replaces=*/1).value(), 0);
  ExpectWhole(disk, SaveOf(2));
}

TEST_F(SharedCommitTest, ShortFileIsNotPublished) {
  const SharedInflight save = SaveOf(5);
  CrashDisk disk;
  PlantInFlight(disk, save);
  disk.Plant(".ckptd/shared/inflight/" + save.name + "/" + kFiles[0], "short");
  Coordinator coordinator(&disk, 1);
  EXPECT_EQ(ReasonOf(coordinator.Publish(save).status()), "SHORT_FILE");
  EXPECT_EQ(coordinator.Find(save).value(), SharedPlace::kInFlight);
}

TEST_F(SharedCommitTest, FailedSyncIsNoPublication) {
  for (const std::string& path : {std::string(), std::string(".ckptd/shared/inflight")}) {
    const SharedInflight save = SaveOf(5);
    CrashDisk disk;
    PlantInFlight(disk, save);
    Coordinator coordinator(&disk, 1);
    disk.FailNextSync(path);
    EXPECT_FALSE(coordinator.Publish(save).ok()) << path;
  }
}

// Each call fails once: the next coordinator goes on from what is left, and nobody took the error for an
// answer.
TEST_F(SharedCommitTest, ErrorOfTheDiskNeitherLosesNorGivesUpASave) {
  const SharedInflight save = SaveOf(5);
  for (const FsOp operation :
       {FsOp::kOpen, FsOp::kStat, FsOp::kReadAt, FsOp::kWriteAt, FsOp::kRemove, FsOp::kRename, FsOp::kSync}) {
    const int faults = FailEachCall(
        operation, EIO, [&](CrashDisk& disk) { PlantInFlight(disk, save); },
        [&](FaultyFileSystem& faulty, CrashDisk& disk) {
          const auto layout = OpenSharedLayout(&faulty, disk.root());
          if (!layout.ok()) return;
          const auto published = PublishShared(*layout, save, ManifestOf(save), 1);
          if (published.ok()) {
            ExpectWhole(*disk.CutPower(Loss::kEverything, 1), save);
          } else {
            EXPECT_EQ(ErrnoOf(published.status()), EIO) << published.status();
            ExpectWholeOrNone(disk, save.tag);
          }
          Coordinator next(&disk, 2);
          EXPECT_TRUE(next.GoOn(save).ok());
          ExpectWhole(*disk.CutPower(Loss::kEverything, 1), save);
        });
    if (operation != FsOp::kReadAt) {
      EXPECT_GE(faults, 1) << FsOpName(operation);
    }
  }
}

TEST_F(SharedCommitTest, SaveIsNotCalledGoneForAnErrorOfTheDisk) {
  for (const bool published : {false, true}) {
    const SharedInflight save = SaveOf(5);
    for (const FsOp operation : {FsOp::kOpen, FsOp::kStat, FsOp::kReadAt, FsOp::kSync}) {
      FailEachCall(
          operation, EIO,
          [&](CrashDisk& disk) { published ? PlantPublished(disk, save) : PlantInFlight(disk, save); },
          [&](FaultyFileSystem& faulty, CrashDisk& disk) {
            const auto layout = OpenSharedLayout(&faulty, disk.root());
            if (!layout.ok()) return;
            const auto place = FindShared(*layout, save);
            if (place.ok()) {
              EXPECT_EQ(*place, published ? SharedPlace::kPublished : SharedPlace::kInFlight);
            } else {
              EXPECT_EQ(ErrnoOf(place.status()), EIO) << place.status();
            }
          });
    }
  }
}

TEST_F(SharedCommitTest, RemovalThatMeetsAnErrorOfTheDiskGoesOn) {
  const SharedInflight save = SaveOf(5), other = SaveOf(6, "step_2");
  for (const FsOp operation :
       {FsOp::kOpen, FsOp::kStat, FsOp::kReadAt, FsOp::kRename, FsOp::kRemove, FsOp::kList, FsOp::kSync}) {
    const int faults = FailEachCall(
        operation, EIO,
        [&](CrashDisk& disk) {
          PlantPublished(disk, save);
          PlantPublished(disk, other);
        },
        [&](FaultyFileSystem& faulty, CrashDisk& disk) {
          const auto layout = OpenSharedLayout(&faulty, disk.root());
          if (!layout.ok()) return;
          RemovalBudget budget;
          const auto gone = RemoveShared(*layout, save.tag, save.sequence, budget);
          if (!gone.ok()) {
            EXPECT_EQ(ErrnoOf(gone.status()), EIO) << gone.status();
          }
          ExpectWholeOrNone(disk, save.tag);
          Coordinator next(&disk, 2);
          EXPECT_TRUE(next.Remove(save).ok());
          EXPECT_THAT(disk.CutPower(Loss::kEverything, 1)->NamesIn(save.tag), IsEmpty());
          ExpectWhole(disk, other);
        });
    EXPECT_GE(faults, 1) << FsOpName(operation);
  }
}

// ---- coordinators that are paused for longer than their leases

TEST_F(SharedCommitTest, CoordinatorThatWasPausedWhileItPublishedFindsTheOthersCheckpoint) {
  for (int pause = 1;; ++pause) {
    const SharedInflight save = SaveOf(5);
    CrashDisk disk;
    PlantInFlight(disk, save);
    Coordinator first(&disk, 1), second(&disk, 2);
    const bool paused = RunPaused(
        disk, pause, [&] { first.Publish(save).status().IgnoreError(); },
        [&] {
          const absl::Status published = second.GoOn(save);
          EXPECT_TRUE(published.ok()) << "pause " << pause << ": " << published;
          ExpectWhole(disk, save);
        });
    EXPECT_EQ(first.Find(save).value(), SharedPlace::kPublished);
    ExpectWhole(*disk.CutPower(Loss::kEverything, 1), save);
    if (!paused) {
      EXPECT_GT(pause, 3);
      return;
    }
  }
}

// The second publishes, removes the checkpoint again, and publishes a younger one; also in part.
TEST_F(SharedCommitTest, CoordinatorThatWasPausedWhileItPublishedBringsNothingBack) {
  for (const bool half_removed : {false, true}) {
    for (int pause = 1;; ++pause) {
      const SharedInflight save = SaveOf(5), younger = SaveOf(9);
      CrashDisk disk;
      PlantInFlight(disk, save);
      PlantInFlight(disk, younger);
      Coordinator first(&disk, 1), second(&disk, 2);
      const bool paused = RunPaused(
          disk, pause, [&] { first.Publish(save).status().IgnoreError(); },
          [&] {
            ASSERT_TRUE(second.GoOn(save).ok());
            if (half_removed) {
              RemovalBudget budget;
              budget.names = 1;
              ASSERT_FALSE(RemoveShared(second.layout(), save.tag, save.sequence, budget).value());
              return;
            }
            ASSERT_TRUE(second.Remove(save).ok());
            ASSERT_EQ(second.Publish(younger).value(), 0);
          });
      if (!paused) break;
      if (half_removed) {
        EXPECT_FALSE(IsCheckpoint(disk, save.tag)) << "pause " << pause;
        EXPECT_TRUE(second.Remove(save).ok());
        EXPECT_EQ(second.Publish(younger).value(), 0);
      }
      ExpectWhole(disk, younger);
    }
  }
}

TEST_F(SharedCommitTest, CoordinatorThatWasPausedWhileItGaveUpPublishesNothing) {
  for (int pause = 1;; ++pause) {
    const SharedInflight save = SaveOf(5);
    CrashDisk disk;
    PlantInFlight(disk, save);
    PlantAt(disk, "step_1/notes.txt", "mine");
    Coordinator first(&disk, 1), second(&disk, 2);
    const bool paused = RunPaused(
        disk, pause, [&] { first.Publish(save).status().IgnoreError(); },
        [&] { second.Publish(save).status().IgnoreError(); });
    EXPECT_EQ(second.Find(save).value(), SharedPlace::kInTrash);
    EXPECT_EQ(disk.Content("step_1/notes.txt"), "mine");
    if (!paused) return;
  }
}

// Two coordinators are paused, one after the other, and a third one does what they have begun, and more.
TEST_F(SharedCommitTest, CoordinatorsThatWerePausedInTurnBringNothingBack) {
  const SharedInflight save = SaveOf(5), younger = SaveOf(9);
  for (const bool removing : {false, true}) {
    size_t paused = 2;
    int histories = 0;
    for (int i = 1; paused > 0; ++i) {
      paused = 2;
      for (int j = 1; paused == 2; ++j) {
        CrashDisk disk;
        removing ? PlantPublished(disk, save) : PlantInFlight(disk, save);
        PlantInFlight(disk, younger);
        Coordinator first(&disk, 1), second(&disk, 2), third(&disk, 3);
        const auto act = [&](Coordinator& late) {
          (removing ? late.Remove(save) : late.GoOn(save)).IgnoreError();
        };
        paused = RunPausedInTurn(disk, {i, j},
                                 {[&] { act(first); }, [&] { act(second); },
                                  [&] {
                                    const absl::Status gone_on =
                                        removing ? absl::OkStatus() : third.GoOn(save);
                                    EXPECT_EQ(gone_on, absl::OkStatus());
                                    EXPECT_EQ(third.Remove(save), absl::OkStatus());
                                    EXPECT_EQ(third.Publish(younger).value(), 0);
                                  }});
        if (paused < 2) break;
        ++histories;
        ExpectWhole(disk, younger);
        ExpectWhole(*disk.CutPower(Loss::kEverything, 1), younger);
      }
    }
    EXPECT_GT(histories, 20);
  }
}

// ---- removal

TEST_F(SharedCommitTest, RemovesACheckpointAndItsName) {
  const SharedInflight save = SaveOf(5), other = SaveOf(6, "step_2");
  CrashDisk disk;
  PlantPublished(disk, save);
  PlantPublished(disk, other);
  Coordinator coordinator(&disk, 1);
  EXPECT_TRUE(coordinator.Remove(save).ok());
  EXPECT_FALSE(disk.Exists("step_1"));
  EXPECT_FALSE(disk.CutPower(Loss::kEverything, 1)->Exists("step_1"));
  EXPECT_TRUE(coordinator.Remove(save).ok()) << "a second time";
  ExpectWhole(disk, other);
}

TEST_F(SharedCommitTest, RemovesNothingElse) {
  const SharedInflight younger = SaveOf(9);
  CrashDisk disk;
  PlantPublished(disk, younger);
  PlantAt(disk, "step_2/notes.txt", "mine");
  PlantAt(disk, "step_3", "a file");
  Coordinator coordinator(&disk, 1);
  EXPECT_TRUE(coordinator.Remove(SaveOf(5)).ok());
  ExpectWhole(disk, younger);
  EXPECT_TRUE(coordinator.Remove(SaveOf(5, "step_2")).ok());
  EXPECT_EQ(disk.Content("step_2/notes.txt"), "mine");
  EXPECT_TRUE(coordinator.Remove(SaveOf(5, "step_3")).ok());
  EXPECT_EQ(disk.Content("step_3"), "a file");
}

TEST_F(SharedCommitTest, DamagedManifestIsAnError) {
  CrashDisk disk;
  PlantAt(disk, "step_1/.ckptd/manifest", "damaged");
  Coordinator coordinator(&disk, 1);
  EXPECT_EQ(ReasonOf(coordinator.Remove(SaveOf(5))), "CORRUPT_MANIFEST");
  EXPECT_EQ(disk.Content("step_1/.ckptd/manifest"), "damaged");
}

TEST_F(SharedCommitTest, AfterACrashAtAnyStepARemovalGoesOn) {
  const SharedInflight save = SaveOf(5), younger = SaveOf(9);
  std::vector<std::unique_ptr<CrashDisk>> left;
  CrashDisk disk;
  PlantPublished(disk, save);
  PlantInFlight(disk, younger);
  Coordinator coordinator(&disk, 1);
  disk.OnChange([&](const std::string&) {
    for (const Loss loss : kLosses) left.push_back(disk.CutPower(loss, left.size()));
    left.push_back(disk.Kill());
  });
  ASSERT_TRUE(coordinator.Remove(save).ok());
  ASSERT_GT(left.size(), 5 * kLosses.size());
  for (const auto& after : left) {
    ExpectWholeOrNone(*after, save.tag);
    Coordinator next(after.get(), 2);
    const absl::Status removed = next.Remove(save);
    EXPECT_TRUE(removed.ok()) << removed;
    EXPECT_EQ(next.Publish(younger).value(), 0);
    ExpectWhole(*after, younger);
  }
}

TEST_F(SharedCommitTest, RemovalThatGoesOnAfterAKillLeavesNoEmptyDirectory) {
  const SharedInflight save = SaveOf(5);
  std::vector<std::unique_ptr<CrashDisk>> killed;
  CrashDisk disk;
  PlantPublished(disk, save);
  Coordinator coordinator(&disk, 1);
  const uint64_t inode = InodeOfShared(coordinator.layout(), save.tag, save.sequence).value();
  disk.OnChange([&](const std::string&) { killed.push_back(disk.Kill()); });
  ASSERT_TRUE(coordinator.Remove(save, inode).ok());
  for (const auto& after : killed) {
    EXPECT_TRUE(Coordinator(after.get(), 2).Remove(save, inode).ok());
    EXPECT_FALSE(after->Exists(save.tag));
    EXPECT_FALSE(after->CutPower(Loss::kEverything, 1)->Exists(save.tag));
  }
}

TEST_F(SharedCommitTest, EmptyDirectoryThatTheDecisionDoesNotNameStays) {
  CrashDisk disk;
  disk.Plant("step_1", FileType::kDirectory);
  Coordinator coordinator(&disk, 1);
  EXPECT_TRUE(coordinator.Remove(SaveOf(5)).ok());
  EXPECT_TRUE(coordinator.Remove(SaveOf(5), /*inode=*/1 << 30).ok());
  EXPECT_TRUE(disk.Exists("step_1"));
}

// The daemon that is killed has not synced what the next one finds.
TEST_F(SharedCommitTest, RemovalThatGoesOnAfterAKillSurvivesAPowerCut) {
  const SharedInflight save = SaveOf(5);
  std::vector<std::unique_ptr<CrashDisk>> killed;
  CrashDisk disk;
  PlantPublished(disk, save);
  Coordinator coordinator(&disk, 1);
  disk.OnChange([&](const std::string&) { killed.push_back(disk.Kill()); });
  ASSERT_TRUE(coordinator.Remove(save).ok());
  for (const auto& after : killed) {
    Coordinator next(after.get(), 2);
    uint64_t seed = 0;
    after->OnChange([&](const std::string&) {
      for (const Loss loss : kLosses) ExpectWholeOrNone(*after->CutPower(loss, ++seed), save.tag);
    });
    EXPECT_TRUE(next.Remove(save).ok());
    after->OnChange(nullptr);
    const auto cut = after->CutPower(Loss::kEverything, 1);
    EXPECT_THAT(cut->NamesIn(save.tag), IsEmpty());
  }
}

TEST_F(SharedCommitTest, SaveThatWasGivenUpBeforeAKillStaysSo) {
  const SharedInflight save = SaveOf(5);
  std::vector<std::unique_ptr<CrashDisk>> killed;
  CrashDisk disk;
  PlantInFlight(disk, save);
  PlantAt(disk, "step_1/notes.txt", "mine");
  Coordinator coordinator(&disk, 1);
  disk.OnChange([&](const std::string&) { killed.push_back(disk.Kill()); });
  EXPECT_EQ(ReasonOf(coordinator.Publish(save).status()), "TAG_FOREIGN");
  int in_trash = 0;
  for (const auto& after : killed) {
    Coordinator next(after.get(), 2);
    if (next.Find(save).value() != SharedPlace::kInTrash) continue;
    ++in_trash;
    const auto cut = after->CutPower(Loss::kEverything, 1);
    EXPECT_EQ(Coordinator(cut.get(), 3).Find(save).value(), SharedPlace::kInTrash);
  }
  EXPECT_GT(in_trash, 0);
}

TEST_F(SharedCommitTest, CoordinatorThatWasPausedWhileItRemovedTouchesNoYoungerCheckpoint) {
  for (int pause = 1;; ++pause) {
    const SharedInflight save = SaveOf(5), younger = SaveOf(9);
    CrashDisk disk;
    PlantPublished(disk, save);
    PlantInFlight(disk, younger);
    Coordinator first(&disk, 1), second(&disk, 2);
    const bool paused = RunPaused(
        disk, pause, [&] { first.Remove(save).IgnoreError(); },
        [&] {
          const absl::Status removed = second.Remove(save);
          ASSERT_TRUE(removed.ok()) << "pause " << pause << ": " << removed;
          ASSERT_EQ(second.Publish(younger).value(), 0);
        });
    if (!paused) {
      EXPECT_GT(pause, 8);
      return;
    }
    ExpectWhole(*disk.CutPower(Loss::kEverything, 1), younger);
  }
}

TEST_F(SharedCommitTest, NobodySeesACheckpointThatIsRemovedInPart) {
  const SharedInflight save = SaveOf(5);
  CrashDisk disk;
  PlantPublished(disk, save);
  Coordinator coordinator(&disk, 1);
  bool looking = false;
  disk.OnChange([&](const std::string&) {
    if (std::exchange(looking, true)) return;
    ExpectWholeOrNone(disk, save.tag);
    looking = false;
  });
  EXPECT_TRUE(coordinator.Remove(save).ok());
}

}  // namespace
}  // namespace ckptd
