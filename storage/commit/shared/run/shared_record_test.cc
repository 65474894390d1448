// The record of a run of several nodes, and the directories of terms: coordinators that are late, power cuts
// at every step, and a fault at every call.
#include "storage/commit/shared/run/shared_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "storage/base/errors.h"
#include "storage/commit/shared/run/look_again.h"
#include "storage/commit/shared/run/shared_term.h"
#include "storage/commit/steps/pointers.h"
#include "storage/commit/steps/run_marks.h"
#include "tests/testing/crash_disk.h"
#include "tests/testing/faulty_file_system.h"
#include "tests/testing/shared_root_fixture.h"

namespace ckptd {
namespace {

using storage::v1::Damage;
using storage::v1::SharedRunRecord;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Not;

const std::string kShared = ".ckptd/shared";

SharedRunRecord Pinning(const std::string& tag) {
  SharedRunRecord record;
  SetPinned(record, tag, 1, true);
  return record;
}

std::string PinnedBy(const SharedRunRecord& record) {
  return record.pins().pins_size() == 0 ? "" : record.pins().pins(0).tag();
}

// A daemon that may coordinate.
struct Coordinator {
  Coordinator(FileSystem& fs, Handle root, int64_t number)
      : layout(OpenShared(fs, root)), records(&layout), term(number) {}
  absl::StatusOr<RecordVersion> Pin(const std::string& tag) { return records.Store(Pinning(tag), term); }
  std::string Read(RecordVersion at_least = {}) {
    const auto record = records.Load(at_least);
    EXPECT_TRUE(record.ok()) << record.status();
    return record.ok() ? PinnedBy(*record) : "error";
  }

  SharedLayout layout;
  SharedRecords records;
  int64_t term;
};

TEST(SharedRecordTest, IsEmptyUntilItIsStored) {
  CrashDisk disk;
  Coordinator one(disk, disk.root(), 1);
  const auto none = one.records.Load({});
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ(none->ByteSizeLong(), 0U);
  EXPECT_EQ(one.Pin("a").value(), (RecordVersion{1, 1}));
  EXPECT_EQ(one.Read(), "a");
  EXPECT_EQ(Coordinator(disk, disk.root(), 2).Read(), "a") << "by another node";
}

TEST(SharedRecordTest, HighestTermCountsAndItsNumberGoesOn) {
  CrashDisk disk;
  Coordinator one(disk, disk.root(), 1), two(disk, disk.root(), 12), late(disk, disk.root(), 3);
  ASSERT_TRUE(one.Pin("a").ok());
  EXPECT_EQ(two.Read(), "a");
  EXPECT_EQ(two.Pin("b").value(), (RecordVersion{12, 2}));
  EXPECT_THAT(disk.NamesIn(kShared), Not(Contains("record.1"))) << "it counts no more";
  ASSERT_TRUE(late.Pin("c").ok());
  EXPECT_EQ(two.Read(), "b");
  EXPECT_EQ(one.Read(), "b");
  EXPECT_EQ(two.Pin("d").value(), (RecordVersion{12, 3}));
  EXPECT_THAT(disk.NamesIn(kShared), ElementsAre("inflight", "record.12", "trash"));
}

TEST(SharedRecordTest, OlderThanTheLedgerSaysIsLookedForAgain) {
  CrashDisk disk;
  Coordinator one(disk, disk.root(), 1);
  EXPECT_EQ(ReasonOf(one.records.Load({1, 1}).status()), kLookAgain) << "it may not be seen yet";
  ASSERT_TRUE(one.Pin("a").ok());
  EXPECT_EQ(one.Read({1, 1}), "a");
  for (const RecordVersion newer : {RecordVersion{1, 2}, RecordVersion{2, 0}}) {
    const absl::Status older = one.records.Load(newer).status();
    EXPECT_EQ(ReasonOf(older), kLookAgain) << older;
  }
}

TEST(SharedRecordTest, OldOrNewIsReadAfterACrashAtAnyStep) {
  CrashDisk disk;
  Coordinator one(disk, disk.root(), 1), two(disk, disk.root(), 2);
  ASSERT_TRUE(one.Pin("a").ok());
  ASSERT_TRUE(two.records.Load({}).ok());
  const auto left = CrashEverywhere(disk, [&] { ASSERT_TRUE(two.Pin("b").ok()); });
  EXPECT_GT(left.size(), 4 * kLosses.size());
  for (const auto& after : left) {
    const std::string read = Coordinator(*after, after->root(), 3).Read();
    EXPECT_TRUE(read == "a" || read == "b") << read;
  }
  for (const Loss loss : kLosses) {
    const auto cut = disk.CutPower(loss, 1);
    EXPECT_EQ(Coordinator(*cut, cut->root(), 3).Read(), "b") << NameOf(loss);
  }
}

// The late one's record never takes the place of the later one's, wherever it goes on.
TEST(SharedRecordTest, CoordinatorThatWasPausedWritesOverNothing) {
  for (int pause = 1;; ++pause) {
    CrashDisk disk;
    Coordinator late(disk, disk.root(), 1), later(disk, disk.root(), 2);
    ASSERT_TRUE(late.Pin("a").ok());
    RecordVersion version;
    const bool paused = RunPaused(
        disk, pause, [&] { late.Pin("late").status().IgnoreError(); },
        [&] {
          ASSERT_TRUE(later.records.Load({}).ok());
          const auto stored = later.Pin("b");
          ASSERT_TRUE(stored.ok()) << stored.status();
          version = *stored;
        });
    if (!paused) {
      EXPECT_GT(pause, 3);
      return;
    }
    EXPECT_EQ(later.Read(version), "b");
    EXPECT_EQ(late.Read(version), "b");
    const auto cut = disk.CutPower(Loss::kEverything, 1);
    EXPECT_EQ(Coordinator(*cut, cut->root(), 3).Read(version), "b");
  }
}

TEST(SharedRecordTest, ErrorOfTheDiskIsNoAbsenceAndNoOlderRecord) {
  for (const int error : {EIO, ENOENT, ESTALE}) {
    for (const FsOp operation : {FsOp::kOpen, FsOp::kList, FsOp::kStat, FsOp::kReadAt}) {
      const auto prepare = [](CrashDisk& disk) {
        Coordinator one(disk, disk.root(), 1), two(disk, disk.root(), 2);
        ASSERT_TRUE(two.Pin("b").ok());
        ASSERT_TRUE(one.Pin("a").ok());
      };
      const int faults =
          FailEachCall(operation, error, prepare, [&](FaultyFileSystem& faulty, CrashDisk& disk) {
            const auto layout = OpenSharedLayout(&faulty, disk.root());
            if (!layout.ok()) return;
            SharedRecords records(&*layout);
            const auto read = records.Load({});
            if (read.ok()) {
              EXPECT_EQ(PinnedBy(*read), "b");
              return;
            }
            const bool again = ReasonOf(read.status()) == kLookAgain;
            EXPECT_EQ(again, error != EIO) << read.status();
          });
      EXPECT_GE(faults, 1) << FsOpName(operation);
    }
  }
}

TEST(SharedRecordTest, DamagedRecordIsAnErrorAlthoughThereIsAnOlderOne) {
  CrashDisk disk;
  Coordinator one(disk, disk.root(), 1);
  ASSERT_TRUE(one.Pin("a").ok());
  disk.Plant(kShared + "/record.2", "damaged");
  const absl::Status read = one.records.Load({}).status();
  EXPECT_EQ(ReasonOf(read), "ROOT_UNREADABLE");
  EXPECT_THAT(std::string(read.message()), ::testing::HasSubstr(".ckptd/shared/record.2"));
}

TEST(SharedRecordTest, FailedStoreIsAnErrorAndItsNumberIsNotUsedAgain) {
  for (const FsOp operation : {FsOp::kOpen, FsOp::kWriteAt, FsOp::kSync, FsOp::kRename}) {
    int failed = 0;
    const int faults = FailEachCall(
        operation, EIO, [](CrashDisk&) {},
        [&](FaultyFileSystem& faulty, CrashDisk& disk) {
          const auto layout = OpenSharedLayout(&faulty, disk.root());
          if (!layout.ok()) {
            ++failed;
            return;
          }
          SharedRecords records(&*layout);
          const auto first = records.Store(Pinning("a"), 1);
          if (first.ok()) return;
          ++failed;
          EXPECT_EQ(ErrnoOf(first.status()), EIO);
          EXPECT_EQ(records.Store(Pinning("b"), 1).value(), (RecordVersion{1, 2}));
          EXPECT_EQ(PinnedBy(records.Load({1, 2}).value()), "b");
        });
    EXPECT_GE(faults, 1) << FsOpName(operation);
    EXPECT_EQ(failed, faults) << FsOpName(operation);
  }
}

TEST(SharedRecordTest, MarksCheckpointsByTagAndSequence) {
  std::map<int64_t, CommittedCheckpoint> checkpoints;
  for (const auto& [sequence, tag] : std::map<int64_t, std::string>{{1, "a"}, {2, "b"}, {3, "c"}}) {
    checkpoints[sequence].summary.set_tag(tag);
    checkpoints[sequence].pinned = true;
  }
  SharedRunRecord record;
  SetPinned(record, "a", 1, true);
  SetPinned(record, "a", 1, true);
  SetPinned(record, "b", 3, true);  // Of a checkpoint that is gone.
  Damage damage;
  damage.set_message("first");
  SetDamage(record, "b", 2, damage);
  damage.set_message("second");
  SetDamage(record, "b", 2, damage);
  SetDamage(record, "c", 2, damage);
  EXPECT_EQ(record.pins().pins_size(), 2);
  MarkCheckpoints(record, checkpoints);
  EXPECT_TRUE(checkpoints.at(1).pinned);
  EXPECT_FALSE(checkpoints.at(2).pinned);
  EXPECT_FALSE(checkpoints.at(3).pinned);
  EXPECT_FALSE(checkpoints.at(1).damage.has_value());
  ASSERT_TRUE(checkpoints.at(2).damage.has_value());
  EXPECT_EQ(checkpoints.at(2).damage->message(), "first") << "an earlier mark stays";
  EXPECT_EQ(checkpoints.at(2).damage->sequence(), 2);
  ForgetCheckpoint(record, "a", 1);
  ForgetCheckpoint(record, "b", 2);
  MarkCheckpoints(record, checkpoints);
  EXPECT_FALSE(checkpoints.at(1).pinned);
  EXPECT_FALSE(checkpoints.at(2).damage.has_value());
}

// ---- terms

std::map<int64_t, CommittedCheckpoint> Naming(const std::map<int64_t, std::string>& tags) {
  std::map<int64_t, CommittedCheckpoint> committed;
  for (const auto& [sequence, tag] : tags) {
    committed[sequence].summary.set_tag(tag);
    (*committed[sequence].summary.mutable_pointers())["latest"] = tag;
  }
  return committed;
}

TEST(SharedTermTest, RemovesTheDirectoriesOfEarlierTermsOnly) {
  CrashDisk disk;
  const SharedLayout layout = OpenShared(disk, disk.root());
  PlantAt(disk, kShared + "/term.1/left/over", "x");
  PlantAt(disk, kShared + "/term.9", FileType::kDirectory);
  PlantAt(disk, kShared + "/term.x", FileType::kDirectory);
  ASSERT_TRUE(BeginTerm(layout, 3).ok());
  ASSERT_TRUE(BeginTerm(layout, 3).ok()) << "a second time";
  EXPECT_THAT(disk.NamesIn(kShared), ElementsAre("inflight", "term.3", "term.9", "term.x", "trash"));
  EXPECT_EQ(ReasonOf(BeginTerm(layout, 0).status()), "INVALID_ARGUMENT");
}

TEST(SharedTermTest, FailedCallIsAnError) {
  for (const FsOp operation : {FsOp::kOpen, FsOp::kMakeDir, FsOp::kList, FsOp::kRemove, FsOp::kStat}) {
    int failed = 0;
    const int faults = FailEachCall(
        operation, EIO, [](CrashDisk& disk) { PlantAt(disk, kShared + "/term.1/x", "x"); },
        [&](FaultyFileSystem& faulty, CrashDisk& disk) {
          const auto layout = OpenSharedLayout(&faulty, disk.root());
          const absl::Status begun = layout.ok() ? BeginTerm(*layout, 2).status() : layout.status();
          if (begun.ok()) {
            EXPECT_FALSE(disk.Exists(kShared + "/term.1"));
          } else {
            EXPECT_EQ(ErrnoOf(begun), EIO);
            ++failed;
          }
        });
    EXPECT_GE(faults, 1) << FsOpName(operation);
    EXPECT_EQ(failed, faults) << FsOpName(operation);
  }
}

// A coordinator decides what a pointer says, and is paused before any step of writing it, while the next one
// begins its term and writes what is newer.
TEST(SharedTermTest, CoordinatorThatWasPausedTakesNoPointerBack) {
  for (int pause = 1;; ++pause) {
    CrashDisk disk;
    const SharedLayout layout = OpenShared(disk, disk.root());
    const auto first = BeginTerm(layout, 1);
    ASSERT_TRUE(first.ok());
    PointerWriter late(&disk, disk.root(), first->get());
    const bool paused = RunPaused(
        disk, pause,
        [&] {
          late.Update(Naming({{1, "old"}}));
        },
        [&] {
          const auto second = BeginTerm(layout, 2);
          ASSERT_TRUE(second.ok()) << second.status();
          PointerWriter writer(&disk, disk.root(), second->get());
          EXPECT_TRUE(writer.Update(Naming({{1, "old"}, {2, "new"}})).warnings.empty());
        });
    if (!paused) {
      EXPECT_GT(pause, 4);
      return;
    }
    EXPECT_EQ(disk.Content("latest"), "new") << "pause " << pause;
    EXPECT_EQ(disk.CutPower(Loss::kEverything, 1)->Content("latest"), "new") << "pause " << pause;
  }
}

// The late one goes on while its directory is being removed.
TEST(SharedTermTest, TermThatIsBegunWhileALateCoordinatorWritesHasTheLastWord) {
  for (int pause = 1;; ++pause) {
    CrashDisk disk;
    const SharedLayout layout = OpenShared(disk, disk.root());
    const auto first = BeginTerm(layout, 1);
    ASSERT_TRUE(first.ok());
    ASSERT_TRUE(WriteNewFile(disk, first->get(), "left", "x").ok());
    PointerWriter late(&disk, disk.root(), first->get());
    const bool paused = RunPaused(
        disk, pause,
        [&] {
          const auto second = BeginTerm(layout, 2);
          ASSERT_TRUE(second.ok()) << second.status();
          PointerWriter writer(&disk, disk.root(), second->get());
          EXPECT_TRUE(writer.Update(Naming({{2, "new"}})).warnings.empty());
        },
        [&] {
          late.Update(Naming({{1, "old"}}));
          WriteNewFile(disk, first->get(), "another", "x").IgnoreError();
        });
    EXPECT_EQ(disk.Content("latest"), "new") << "pause " << pause;
    EXPECT_FALSE(disk.Exists(kShared + "/term.1")) << "pause " << pause;
    if (!paused) {
      EXPECT_GT(pause, 4);
      return;
    }
  }
}

}  // namespace
}  // namespace ckptd
