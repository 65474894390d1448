// TrashCollector without the rest of the engine: the grace period, room for saves, and bringing checkpoints
// back.
#include "daemon/engine/retention/trash_collector.h"

#include "storage/base/errors.h"
#include "tests/testing/engine_class_fixture.h"

namespace ckptd {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Key;
using ::testing::SizeIs;

class TrashCollectorTest : public ClassTest {
 protected:
  // As if the checkpoint had just been moved to the trash.
  void Trash(Run* run, int64_t sequence) {
    CommittedCheckpoint checkpoint;
    checkpoint.summary.set_tag("s" + std::to_string(sequence));
    checkpoint.summary.set_sequence(sequence);
    checkpoint.summary.set_size_bytes(100);
    disks_[run]->trashed[sequence] = {checkpoint, clock_.UnixMicros()};
    trash_.AddBytes(run, 100);
  }
  void Pass(Run* run) {
    trash_.Empty(run);
    RunCallbacks();
  }
  void Tick(Run* run, Duration later) {
    clock_.Advance(later);
    trash_.OnTick(run, clock_.Now());
    RunCallbacks();
  }
  // Begins to bring the checkpoint back; the answer comes with the next RunCallbacks.
  std::shared_ptr<absl::StatusOr<CommittedCheckpoint>> Undelete(Run* run, const std::string& tag) {
    auto answer = std::make_shared<absl::StatusOr<CommittedCheckpoint>>(absl::UnknownError("no answer yet"));
    trash_.Undelete(run, tag, 0, [answer](absl::StatusOr<CommittedCheckpoint> back) { *answer = back; });
    return answer;
  }

  std::vector<bool> emptied_;  // Whether each pass was for room.
  int scans_ = 0, pointers_ = 0;
  TrashCollector trash_{seconds(60),
                        &clock_,
                        this,
                        {.has_leases = [](const Run&) { return false; },
                         .room_changed = [](Run*) {},
                         .emptied = [this](Run*, bool for_room) { emptied_.push_back(for_room); },
                         .undeleted = [this](Run*, const PointerFiles&) { ++pointers_; },
                         .needs_scan = [this](Run*) { ++scans_; }}};
};

TEST_F(TrashCollectorTest, EmptiesACheckpointAtTheEndOfItsGracePeriodAndNotBefore) {
  Run* run = AddRun(1000);
  Trash(run, 1);
  clock_.Advance(seconds(20));
  Trash(run, 2);
  Pass(run);
  EXPECT_EQ(trash_.bytes(*run), 200);
  EXPECT_TRUE(trash_.HasInGrace(*run));
  EXPECT_FALSE(trash_.IsIdle(*run)) << "a closed run would keep it for longer";
  EXPECT_TRUE(trash_.MayFreeRoom(*run));
  Tick(run, seconds(39));
  EXPECT_EQ(ios_[run]->calls["EmptyTrash"], 1) << "nothing polls";
  Tick(run, seconds(1));
  EXPECT_THAT(disks_[run]->trashed, ElementsAre(Key(2)));
  Tick(run, seconds(20));
  EXPECT_THAT(disks_[run]->trashed, IsEmpty());
  EXPECT_TRUE(trash_.IsIdle(*run));
}

TEST_F(TrashCollectorTest, MakesRoomAlsoOfWhatIsInItsGracePeriod) {
  Run* run = AddRun(1000);
  for (int64_t sequence : {1, 2, 3}) Trash(run, sequence);
  Pass(run);
  EXPECT_EQ(trash_.MakeRoom(run, 150), 150);
  EXPECT_EQ(trash_.MakeRoom(run, 120), 120) << "while that pass is under way";
  RunCallbacks();
  EXPECT_EQ(ios_[run]->trash_terms.room_bytes, 120);
  EXPECT_THAT(disks_[run]->trashed, IsEmpty());
  EXPECT_EQ(trash_.MakeRoom(run, 150), 0) << "nothing is left";
  RunCallbacks();
  EXPECT_THAT(emptied_, ElementsAre(false, true, true));
}

TEST_F(TrashCollectorTest, AsksForRoomOnce) {
  Run* run = AddRun(1000);
  Trash(run, 1);
  trash_.MakeRoom(run, 10);
  RunCallbacks();
  Trash(run, 2);
  Pass(run);
  EXPECT_THAT(disks_[run]->trashed, ElementsAre(Key(2)));
}

TEST_F(TrashCollectorTest, UndeletedCheckpointIsInTheCatalogPinned) {
  Run* run = AddRun(1000, {5});
  for (int64_t sequence : {1, 2}) Trash(run, sequence);
  Pass(run);
  const auto back = Undelete(run, "s1");
  EXPECT_TRUE(trash_.IsUndeleting(*run, "s1"));
  EXPECT_FALSE(trash_.IsUndeleting(*run, "s2"));
  EXPECT_FALSE(trash_.IsIdle(*run));
  RunCallbacks();
  ASSERT_TRUE(back->ok()) << back->status();
  EXPECT_TRUE(run->catalog.Find(1)->pinned);
  EXPECT_EQ(run->catalog.Newest()->summary.sequence(), 5);
  EXPECT_EQ(trash_.bytes(*run), 100);
  EXPECT_EQ(pointers_, 1);
  EXPECT_FALSE(trash_.IsUndeleting(*run, "s1"));
}

TEST_F(TrashCollectorTest, RunIsNotIdleWhileACheckpointIsBeingBroughtBack) {
  Run* run = AddRun(1000);
  Trash(run, 1);
  EXPECT_TRUE(trash_.IsIdle(*run)) << "no pass has looked at the trash";
  Undelete(run, "s1");
  EXPECT_FALSE(trash_.IsIdle(*run));
  RunCallbacks();
  EXPECT_TRUE(trash_.IsIdle(*run));
}

TEST_F(TrashCollectorTest, RefusesToUndeleteWhileTheTagIsTaken) {
  Run* run = AddRun(1000, {1});
  EXPECT_EQ(ReasonOf(Undelete(run, AddSave(run, 1, 100)->key.tag)->status()), "TAG_TAKEN")
      << "it is being saved";
  Trash(run, 2);
  EXPECT_EQ(ReasonOf(Undelete(run, "s1")->status()), "TAG_TAKEN");
  EXPECT_THAT(std::string(Undelete(run, "s1")->status().message()), testing::HasSubstr("sequence 1"));
  run->catalog.BeginEviction(1);
  EXPECT_THAT(std::string(Undelete(run, "s1")->status().message()),
              testing::HasSubstr("is being moved to the trash"));
  const auto first = Undelete(run, "s2"), second = Undelete(run, "s2");
  EXPECT_EQ(ReasonOf(second->status()), "TAG_TAKEN") << "the first one is under way";
  RunCallbacks();
  EXPECT_TRUE(first->ok()) << first->status();
  EXPECT_EQ(ReasonOf(Undelete(run, "s2")->status()), "TAG_TAKEN") << "it is back";
  EXPECT_EQ(ios_[run]->calls["Undelete"], 1);
}

TEST_F(TrashCollectorTest, FailedUndeleteLeavesTheTagFreeAndAnUnknownOneIsScanned) {
  Run* run = AddRun(1000);
  Trash(run, 1);
  for (const bool unknown : {false, true}) {
    ios_[run]->errors["Undelete"] = unknown
                                        ? MakeError(absl::StatusCode::kUnknown, "INDETERMINATE", "syncing")
                                        : ErrnoError(EIO, "pinning");
    const auto failed = Undelete(run, "s1");
    RunCallbacks();
    EXPECT_FALSE(failed->ok());
    EXPECT_EQ(scans_, unknown ? 1 : 0);
    EXPECT_FALSE(trash_.IsUndeleting(*run, "s1"));
    EXPECT_EQ(run->catalog.FindTag("s1"), nullptr);
  }
  ios_[run]->errors.clear();
  const auto back = Undelete(run, "s1");
  RunCallbacks();
  EXPECT_TRUE(back->ok()) << back->status();
}

}  // namespace
}  // namespace ckptd
