#include "daemon/engine/admission/disk_room.h"

#include "storage/base/errors.h"
#include "tests/testing/engine_class_fixture.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;
using ::testing::SizeIs;

constexpr int64_t kMiB = 1 << 20;

class DiskRoomTest : public ClassTest {
 protected:
  void SetFree(Run* run, int64_t bytes) {
    disks_[run]->free_bytes = bytes;
    room_.SetFreeBytes(run, bytes);
  }
  DiskRoom::Claim Reserve(Save* save) {
    std::string lack;
    return room_.Reserve(save, &lack);
  }

  ExpectedSizes sizes_;
  bool may_free_ = false;
  int wakes_ = 0, emptied_ = 0;
  std::map<const Run*, int64_t> trash_;                     // Bytes.
  std::vector<std::pair<const Run*, int64_t>> room_asked_;  // The calls of empty_trash.
  DiskRoom room_{&clock_,
                 &runs_,
                 &saves_,
                 &sizes_,
                 {.may_free_room = [this](const Run&) { return may_free_; },
                  .empty_trash =
                      [this](Run* run, int64_t bytes) {
                        ++emptied_;
                        room_asked_.emplace_back(run, bytes);
                        return std::min(bytes, trash_[run]);
                      },
                  .room_changed = [this] { ++wakes_; }}};
};

TEST_F(DiskRoomTest, PromisesEachByteOnce) {
  Run* run = AddRun(1000);
  SetFree(run, 10 * kMiB);
  Save* first = AddSave(run, 1, 5 * kMiB);
  Save* second = AddSave(run, 1, 5 * kMiB);
  EXPECT_EQ(Reserve(first), DiskRoom::Claim::kReserved);
  EXPECT_EQ(Reserve(second), DiskRoom::Claim::kMayCome) << "the first save may fail";
  first->disk_reserved = 0;
  EXPECT_EQ(Reserve(second), DiskRoom::Claim::kReserved);
}

TEST_F(DiskRoomTest, SubtractsWhatWasWrittenSinceItAsked) {
  Run* run = AddRun(1000);
  SetFree(run, 10 * kMiB);
  Save* first = AddSave(run, 1, 5 * kMiB);
  EXPECT_EQ(Reserve(first), DiskRoom::Claim::kReserved);
  first->written->store(5 * kMiB);
  first->disk_reserved = 0;
  room_.OnSaveEnded(*first);
  saves_.Remove(first);
  EXPECT_EQ(room_.WrittenBytes(1), 5 * kMiB);
  room_.Remember(run, {10 * kMiB, 0, 1});  // An answer from before the first save.
  EXPECT_EQ(Reserve(AddSave(run, 1, 5 * kMiB)), DiskRoom::Claim::kNever);
}

TEST_F(DiskRoomTest, RefusesOnlyWhenNothingOnTheDeviceFreesRoom) {
  Run* run = AddRun(1000);
  SetFree(run, kMiB);
  Save* save = AddSave(run, 1, 5 * kMiB);
  may_free_ = true;
  EXPECT_EQ(Reserve(save), DiskRoom::Claim::kMayCome);
  may_free_ = false;
  EXPECT_EQ(Reserve(save), DiskRoom::Claim::kNever);
}

TEST_F(DiskRoomTest, RefusesWhatTheWholeFileSystemCannotHoldWhateverMayBecomeFree) {
  Run* run = AddRun(1000);
  run->probe.total_bytes = 10 * kMiB;
  SetFree(run, 10 * kMiB);
  Save* first = AddSave(run, 1, 5 * kMiB);
  ASSERT_EQ(Reserve(first), DiskRoom::Claim::kReserved);
  may_free_ = true;
  std::string lack;
  EXPECT_EQ(room_.Reserve(AddSave(run, 1, 10 * kMiB), &lack), DiskRoom::Claim::kNever);
  EXPECT_THAT(lack, ::testing::HasSubstr("and holds no more than 10485760 in all"));
  EXPECT_EQ(Reserve(AddSave(run, 1, 9 * kMiB)), DiskRoom::Claim::kMayCome)
      << "it fits once the first is gone";
}

TEST_F(DiskRoomTest, AsksAnewAfterAnotherRunOfTheDeviceHasFreedRoom) {
  Run* run = AddRun(1000);
  Run* other = AddRun(1000);
  SetFree(run, kMiB);
  Save* save = AddSave(run, 1, 5 * kMiB);
  room_.NoteChange(*other);
  disks_[run]->free_bytes = 100 * kMiB;
  EXPECT_EQ(Reserve(save), DiskRoom::Claim::kAsking);
  EXPECT_TRUE(room_.IsAsking(*run));
  RunCallbacks();
  EXPECT_EQ(wakes_, 1);
  EXPECT_EQ(Reserve(save), DiskRoom::Claim::kReserved);
}

TEST_F(DiskRoomTest, PollsAtMostOnceInAnInterval) {
  Run* run = AddRun(1000);
  Save* save = AddSave(run, 1, kMiB);
  room_.Poll(save);
  room_.Poll(save);
  EXPECT_EQ(emptied_, 1);
  clock_.Advance(std::chrono::seconds(1));
  room_.OnTick(run, clock_.Now());
  EXPECT_EQ(wakes_, 1);
  room_.Poll(save);
  EXPECT_EQ(emptied_, 2);
}

TEST_F(DiskRoomTest, TakesRoomFromItsOwnTrashFirstAndThenFromOthersOfTheDevice) {
  Run* run = AddRun(1000);
  Run* other = AddRun(2000);
  Run* third = AddRun(3000);
  Run* elsewhere = AddRun(1000, {}, /*device=*/2);
  may_free_ = true;
  for (Run* each : {other, third, elsewhere}) trash_[each] = 100 * kMiB;
  trash_[run] = 3 * kMiB;
  room_.MakeRoom(run, 10 * kMiB);
  EXPECT_THAT(room_asked_, ElementsAre(Pair(run, 10 * kMiB), Pair(other, 7 * kMiB)));
  room_asked_.clear();
  trash_ = {{elsewhere, 100 * kMiB}};
  room_.MakeRoom(run, kMiB);
  EXPECT_THAT(room_asked_, ElementsAre(Pair(run, kMiB), Pair(other, kMiB), Pair(third, kMiB)));
  room_asked_.clear();
  trash_[run] = 3 * kMiB;
  SetFree(run, 2 * kMiB);
  room_.Poll(AddSave(run, 1, 4 * kMiB));
  ASSERT_THAT(room_asked_, SizeIs(1));
  EXPECT_GE(room_asked_[0].second, 2 * kMiB);
  EXPECT_LE(room_asked_[0].second, 4 * kMiB) << "what it lacks, with what directories need";
}

TEST_F(DiskRoomTest, KeepsRoomForANextSaveAsLargeAsTheNewestCheckpoint) {
  Run* run = AddRun(1000, {1});  // Of 100 bytes.
  trash_[run] = 100 * kMiB;
  disks_[run]->free_bytes = 50;
  room_.AskAfterChange(run, /*for_next=*/true);
  RunCallbacks();
  ASSERT_THAT(room_asked_, SizeIs(1));
  EXPECT_GE(room_asked_[0].second, 50);
  disks_[run]->free_bytes = 100 * kMiB;
  room_.AskAfterChange(run, /*for_next=*/true);
  RunCallbacks();
  EXPECT_THAT(room_asked_, SizeIs(1)) << "there is enough";
}

TEST_F(DiskRoomTest, APartThatGrowsTakesOnlyWhatIsFree) {
  Run* run = AddRun(1000);
  SetFree(run, 10 * kMiB);
  Save* save = AddSave(run, 1, 5 * kMiB);
  EXPECT_EQ(Reserve(save), DiskRoom::Claim::kReserved);
  save->PartOf(0).end = 8 * kMiB;
  EXPECT_TRUE(room_.Grow(save, 0).ok());
  save->PartOf(0).end = 20 * kMiB;
  EXPECT_EQ(ReasonOf(room_.Grow(save, 0)), "NO_SPACE");
}

}  // namespace
}  // namespace ckptd
