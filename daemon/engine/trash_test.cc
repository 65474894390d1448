// The trash through the whole engine: a grace period, the list, and the way back.
#include "tests/testing/engine_fixture.h"

namespace ckptd {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kMiB = 1 << 20;

class TrashTest : public EngineTest {
 protected:
  void SetUp() override {
    engine_options_.trash_grace = std::chrono::hours(1);
    Start(16);
  }
  Answer<v1::ListTrashResponse> List(const Caller& caller) {
    v1::ListTrashRequest request;
    request.set_run(run_);
    Answer<v1::ListTrashResponse> answer;
    engine_->ListTrash(caller, request, answer.reply());
    RunQueued();
    return answer;
  }
  std::vector<std::string> Listed() {
    const auto list = List(Caller{0, 0, true});
    std::vector<std::string> tags;
    for (const auto& trashed : list.get().checkpoints()) tags.push_back(trashed.checkpoint().tag());
    return tags;
  }
  Answer<v1::Checkpoint> UndeleteLater(const std::string& tag, const Caller& caller = Caller{0, 0, true},
                                       int64_t sequence = 0) {
    v1::UndeleteCheckpointRequest request;
    request.set_name(run_ + "/checkpoints/" + tag);
    request.set_sequence(sequence);
    Answer<v1::Checkpoint> answer;
    engine_->UndeleteCheckpoint(caller, request, answer.reply());
    return answer;
  }
  Answer<v1::Checkpoint> Undelete(const std::string& tag, const Caller& caller = Caller{0, 0, true},
                                  int64_t sequence = 0) {
    auto answer = UndeleteLater(tag, caller, sequence);
    RunQueued();
    return answer;
  }
  // 5 MiB are free, and 20 MiB belong to a checkpoint in its grace period, of which the engine knows.
  void FillDisk(const std::vector<SessionId>& sessions) {
    CommittedCheckpoint old;
    old.summary.set_tag("old");
    old.summary.set_sequence(90);
    old.summary.set_size_bytes(20 * kMiB);
    disks_[1]->trashed[90] = {old, clock_.UnixMicros()};
    disks_[1]->free_bytes = 5 * kMiB;
    SaveAll(sessions, "s0", 0);
    RunQueued();
    EXPECT_EQ(disks_[1]->trashed.size(), 1u);
  }
};

TEST_F(TrashTest, EvictedCheckpointIsListedAndComesBackInItsOldPlacePinned) {
  const auto sessions = Launch("a", 1);
  for (int64_t step : {1, 2, 3}) SaveAll(sessions, "s" + std::to_string(step), step, 1);
  RunQueued([&] { return Tags() == std::vector<std::string>{"s3"}; });
  EXPECT_THAT(Listed(), ElementsAre("s2", "s1"));
  const v1::TrashedCheckpoint trashed = List(As(sessions[0])).get().checkpoints(0);
  EXPECT_EQ(trashed.checkpoint().step(), 2);
  EXPECT_EQ(trashed.purge_time().seconds() - trashed.delete_time().seconds(), 3600);

  const auto back = Undelete("s1", As(sessions[0]));
  ASSERT_TRUE(back.status().ok()) << back.status();
  EXPECT_TRUE(back.get().pinned());
  EXPECT_THAT(Tags(), ElementsAre("s3", "s1"));
  EXPECT_THAT(Listed(), ElementsAre("s2"));
  v1::GetCheckpointRequest latest;
  latest.set_name(run_ + "/checkpoints/latest");
  Answer<v1::Checkpoint> newest;
  engine_->GetCheckpoint(As(sessions[0]), latest, newest.reply());
  EXPECT_EQ(newest.get().tag(), "s3");
  EXPECT_TRUE(Open(sessions[0], "s1").status().ok());
  SaveAll(sessions, "s4", 4, 1);
  RunQueued([&] { return Tags() == std::vector<std::string>{"s4", "s1"}; });
}

TEST_F(TrashTest, OnlyTheOwnerAndPrivilegedUsersListAndBringBack) {
  const auto sessions = Launch("a", 1);
  for (int64_t step : {1, 2}) SaveAll(sessions, "s" + std::to_string(step), step, 1);
  const SessionId stranger = Trainer("b", 2000);
  EXPECT_FALSE(List(As(stranger, 2000)).status().ok());
  EXPECT_FALSE(Undelete("s1", As(stranger, 2000)).status().ok());
  EXPECT_THAT(Listed(), ElementsAre("s1"));
  EXPECT_EQ(Undelete("s9").reason(), "NO_CHECKPOINT");
  EXPECT_EQ(Undelete("s1", Caller{0, 0, true}, 77).reason(), "NO_CHECKPOINT");
}

TEST_F(TrashTest, TagOfASaveUnderWayIsTakenAndOneOnItsWayBackIsNotSaved) {
  const auto sessions = Launch("a", 1);
  for (int64_t step : {1, 2}) SaveAll(sessions, "s" + std::to_string(step), step, 1);
  auto again = BeginOf(0, "s1", 3, 100);
  *again.mutable_key() = Key(0, "s1", 2);
  ASSERT_TRUE(Begin(sessions[0], again).status().ok());
  EXPECT_EQ(Undelete("s1").reason(), "TAG_TAKEN");
  Seal(sessions[0], again);
  RunQueued([&] { return Tags().size() == 2; });
  EXPECT_EQ(Undelete("s1").reason(), "TAG_TAKEN") << "the save has committed it";

  SaveAll(sessions, "s5", 5, 1);
  RunQueued([&] { return Tags() == std::vector<std::string>{"s5"}; });
  ios_[1]->held.insert("Undelete");
  const auto back = UndeleteLater("s2");
  again = BeginOf(0, "s2", 6, 100);
  *again.mutable_key() = Key(0, "s2", 2);
  EXPECT_EQ(Begin(sessions[0], again).reason(), "PINNED");
  ios_[1]->ReleaseHeld();
  RunQueued();
  EXPECT_TRUE(back.status().ok()) << back.status();
}

TEST_F(TrashTest, SaveThatWaitsForTheDiskGetsTheRoomOfTrash) {
  const auto sessions = Launch("a", 1);
  FillDisk(sessions);
  const auto begun = Begin(sessions[0], BeginOf(0, "big", 2, 10 * kMiB));
  RunQueued([&] { return begun.has(); });
  EXPECT_TRUE(begun.status().ok()) << begun.status();
  EXPECT_THAT(disks_[1]->trashed, IsEmpty());
}

TEST_F(TrashTest, SaveWithSkipMakesRoomForTheNextOne) {
  const auto sessions = Launch("a", 1);
  FillDisk(sessions);
  auto request = BeginOf(0, "big", 2, 10 * kMiB);
  request.set_busy(v1::SKIP);
  EXPECT_EQ(Begin(sessions[0], request).get().level(), v1::SKIPPED);
  EXPECT_THAT(disks_[1]->trashed, IsEmpty());
  *request.mutable_key() = Key(0, "big", 2);
  const auto begun = Begin(sessions[0], request);
  RunQueued([&] { return begun.has(); });
  EXPECT_NE(begun.get().level(), v1::SKIPPED);
}

TEST_F(TrashTest, FullDiskThatHoldsUpTheHistoryGetsRoom) {
  const auto sessions = Launch("a", 1);
  SaveAll(sessions, "s0", 0, 1);
  SaveAll(sessions, "s1", 1, 1);
  EXPECT_THAT(Listed(), ElementsAre("s0"));
  ios_[1]->errors["SaveRunRecord"] =
      MakeError(absl::StatusCode::kResourceExhausted, "NO_SPACE", "writing the run record");
  SaveAll(sessions, "s2", 2);
  RunQueued();
  EXPECT_THAT(Listed(), testing::Not(testing::Contains("s0")));
}

TEST_F(TrashTest, RunWithTrashInItsGracePeriodIsNotClosed) {
  engine_options_.idle_root = std::chrono::minutes(1);
  Start(16);
  const auto sessions = Launch("a", 1);
  for (int64_t step : {1, 2}) SaveAll(sessions, "s" + std::to_string(step), step, 1);
  RunQueued();
  engine_->SessionClosed(sessions[0], "the test ends it");
  AdvanceClock(seconds(600));
  AdvanceClock(seconds(600));
  EXPECT_EQ(ios_[1]->calls["Open"], 1);
  EXPECT_THAT(Listed(), ElementsAre("s1"));
  EXPECT_EQ(ios_[1]->calls["Open"], 1) << "it was open all the time";
}

}  // namespace
}  // namespace ckptd
