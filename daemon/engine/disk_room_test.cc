#include "daemon/engine/disk_room.h"

#include "storage/base/errors.h"
#include "tests/testing/engine_class_fixture.h"

namespace ckptd {
namespace {

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
  DiskRoom room_{&clock_,
                 &runs_,
                 &saves_,
                 &sizes_,
                 {.may_free_room = [this](const Run&) { return may_free_; },
                  .empty_trash = [this](Run*) { ++emptied_; },
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
  room_.Remember(run, {10 * kMiB, 0, 1});  // As asked before the first save.
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
  room_.Poll(run);
  room_.Poll(run);
  EXPECT_EQ(emptied_, 1);
  clock_.Advance(std::chrono::seconds(1));
  room_.OnTick(run, clock_.Now());
  EXPECT_EQ(wakes_, 1);
  room_.Poll(run);
  EXPECT_EQ(emptied_, 2);
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
