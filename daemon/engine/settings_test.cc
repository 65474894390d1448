// Limits that change while the engine runs: each counts at once, both lowered and raised.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "daemon/engine/engine.h"
#include "storage/base/errors.h"
#include "tests/testing/engine_fixture.h"

namespace ckptd {
namespace {

using std::chrono::hours;
using std::chrono::seconds;
using ::testing::ElementsAre;

class SettingsTest : public EngineTest {
 protected:
  void Apply() { engine_->SetLimits(engine_options_); }
  // The reason for which a save is refused; empty: it is admitted.
  std::string Refused(SessionId session, const v1::BeginRequest& request) {
    Answer<v1::BeginResponse> begun = Begin(session, request);
    RunQueued([&] { return begun.has(); });
    return begun.reason();
  }
  v1::BeginRequest TwoFiles(const std::string& tag) {
    v1::BeginRequest request = BeginOf(0, tag, 1, 100);
    v1::FileSpec& file = *request.add_files();
    file.set_path("other.pt");
    return request;
  }
};

TEST_F(SettingsTest, RanksOfARun) {
  const SessionId session = Trainer("a");
  engine_options_.limits.ranks_per_run = 1;
  Apply();
  EXPECT_EQ(Join(session, 0, 2, "launch").reason(), "LIMIT_EXCEEDED");
  engine_options_.limits.ranks_per_run = 2;
  Apply();
  EXPECT_TRUE(Join(session, 0, 2, "launch").status().ok());
}

TEST_F(SettingsTest, SavesAndFiles) {
  const SessionId session = Launch("launch", 1)[0];
  engine_options_.limits.saves_per_uid = 1;
  Apply();
  EXPECT_EQ(Refused(session, BeginOf(0, "step_1", 1, 100)), "");
  EXPECT_EQ(Refused(session, BeginOf(0, "step_2", 2, 100)), "LIMIT_EXCEEDED");
  engine_options_.limits.saves_per_uid = 9;
  engine_options_.limits.files_per_part = 1;
  Apply();
  EXPECT_EQ(Refused(session, TwoFiles("step_3")), "LIMIT_EXCEEDED");
  engine_options_.limits.files_per_part = 2;
  engine_options_.limits.files_per_uid = 2;
  Apply();
  EXPECT_EQ(Refused(session, TwoFiles("step_4")), "LIMIT_EXCEEDED") << "one is in flight";
  engine_options_.limits.files_per_uid = 3;
  Apply();
  EXPECT_EQ(Refused(session, TwoFiles("step_5")), "");
}

TEST_F(SettingsTest, Timeouts) {
  const SessionId session = Launch("launch", 1)[0];
  v1::BeginRequest request = BeginOf(0, "step_1", 1, 100);
  request.mutable_timeout()->set_seconds(21);
  request.mutable_commit_timeout()->set_seconds(61);
  engine_options_.max_admission_timeout = seconds(20);
  Apply();
  EXPECT_EQ(Begin(session, request).reason(), "INVALID_ARGUMENT");
  engine_options_.max_admission_timeout = seconds(21);
  engine_options_.max_commit_timeout = seconds(60);
  Apply();
  EXPECT_EQ(Begin(session, request).reason(), "INVALID_ARGUMENT");
  engine_options_.max_commit_timeout = seconds(61);
  Apply();
  EXPECT_EQ(Refused(session, request), "");
}

TEST_F(SettingsTest, LeasesWatchesAndManifests) {
  const SessionId session = Launch("launch", 1)[0];
  SaveAll({session}, "step_1", 1);
  RunQueued([&] { return observer_.ended.size() == 1; });
  engine_options_.limits.leases_per_uid = 1;
  Apply();
  EXPECT_TRUE(Open(session, "step_1").status().ok());
  EXPECT_EQ(Open(session, "step_1").reason(), "LIMIT_EXCEEDED");
  engine_options_.limits.leases_per_uid = 2;
  engine_options_.limits.manifest_bytes_per_uid = 1;
  Apply();
  EXPECT_EQ(Open(session, "step_1").reason(), "LIMIT_EXCEEDED");
  engine_options_.limits.manifest_bytes_per_uid = 1 << 20;
  engine_options_.limits.watches_per_uid = 0;
  Apply();
  EXPECT_TRUE(Open(session, "step_1").status().ok());
  absl::Status refused;
  engine_->AddWatcher(
      As(session), v1::WatchRequest(), [](const v1::WatchResponse&) { return true; }, &refused);
  EXPECT_EQ(ReasonOf(refused), "LIMIT_EXCEEDED");
}

TEST_F(SettingsTest, ShareOfThePoolLetsAWaitingSaveIn) {
  engine_options_.max_pool_percent_per_user = 50;
  Start(8);
  const SessionId session = Launch("launch", 1)[0];
  EXPECT_EQ(Refused(session, BeginOf(0, "held", 1, 3 * kSegment)), "");
  Answer<v1::BeginResponse> waits = Begin(session, BeginOf(0, "waits", 2, 3 * kSegment));
  EXPECT_FALSE(waits.has());
  engine_options_.max_pool_percent_per_user = 100;
  Apply();
  RunQueued([&] { return waits.has(); });
  EXPECT_TRUE(waits.status().ok()) << waits.status();
  engine_options_.max_pool_percent_per_user = 50;
  Apply();
  EXPECT_EQ(Begin(session, BeginOf(0, "large", 3, 5 * kSegment)).reason(), "POOL_TOO_SMALL");
}

TEST_F(SettingsTest, ShareOfReaders) {
  resident_segments_ = 8;
  Start(16);
  const SessionId session = Launch("launch", 1)[0];
  SaveAll({session}, "step_1", 1);
  RunQueued([&] { return observer_.ended.size() == 1; });
  const auto located = [&] {
    const auto opened = Open(session, "step_1");
    v1::LocateFilesRequest request;
    request.set_lease(opened.get().lease());
    Answer<v1::LocateFilesResponse> answer;
    engine_->LocateFiles(As(session), request, answer.reply());
    RunQueued([&] { return answer.has(); });
    const int parts = answer.status().ok() ? answer.get().parts_size() : 0;
    Close(session, opened.get().lease());
    return parts;
  };
  engine_options_.max_reader_pool_percent_per_user = 0;
  Apply();
  EXPECT_EQ(located(), 0);
  engine_options_.max_reader_pool_percent_per_user = 50;
  Apply();
  EXPECT_EQ(located(), 1);
}

TEST_F(SettingsTest, GraceOfUsersBeyondTheirShare) {
  engine_options_.over_share_grace = seconds(3000);
  Start(8);
  const SessionId one = Launch("launch", 1)[0];
  EXPECT_EQ(Refused(one, BeginOf(0, "held", 1, 7 * kSegment)), "");
  const std::string first_run = run_;
  const SessionId other = Trainer("other", 2000);
  v1::JoinRunRequest join;
  join.set_root(Attach(other, 2, 2000));
  join.set_world_size(1);
  join.set_launch_id("launch");
  Answer<v1::JoinRunResponse> joined;
  engine_->JoinRun(As(other, 2000), join, joined.reply());
  RunQueued();
  ASSERT_TRUE(joined.status().ok()) << joined.status();
  Answer<v1::BeginResponse> waits;
  engine_->Begin(As(other, 2000), BeginOf(0, "waits", 1, 4 * kSegment), waits.reply());
  RunQueued();
  AdvanceClock(seconds(15));
  EXPECT_FALSE(waits.has());
  engine_options_.over_share_grace = seconds(10);
  Apply();
  AdvanceClock(seconds(1));
  RunQueued([&] { return waits.has(); });
  EXPECT_TRUE(waits.status().ok()) << waits.status();
  run_ = first_run;
  EXPECT_THAT(Failures(), ElementsAre("held OVER_SHARE"));
}

TEST_F(SettingsTest, ShorterGraceOfTheTrashCountsForWhatIsInIt) {
  engine_options_.trash_grace = hours(1);
  Start(16);
  const auto sessions = Launch("launch", 1);
  CommittedCheckpoint old;
  old.summary.set_tag("old");
  old.summary.set_sequence(90);
  old.summary.set_size_bytes(1 << 20);
  disks_[1]->trashed[90] = {old, clock_.UnixMicros()};
  for (int64_t step : {1, 2}) SaveAll(sessions, "s" + std::to_string(step), step, 1);
  RunQueued([&] { return Tags() == std::vector<std::string>{"s2"}; });
  AdvanceClock(seconds(20));
  EXPECT_EQ(disks_[1]->trashed.size(), 2u);
  engine_options_.trash_grace = Duration::zero();
  Apply();
  RunQueued([&] { return disks_[1]->trashed.empty(); });
  engine_options_.trash_grace = hours(1);
  Apply();
  SaveAll(sessions, "s3", 3, 1);
  RunQueued([&] { return Tags() == std::vector<std::string>{"s3"}; });
  AdvanceClock(seconds(20));
  EXPECT_EQ(disks_[1]->trashed.size(), 1u);
}

TEST_F(SettingsTest, RootsAndFileSystems) {
  const SessionId session = Trainer("a");
  engine_options_.roots_per_uid = 1;
  Apply();
  EXPECT_TRUE(AttachLater(session, 1).status().ok());
  EXPECT_EQ(AttachLater(session, 2).reason(), "LIMIT_EXCEEDED");
  engine_options_.roots_per_uid = 9;
  engine_options_.file_systems_per_uid = 1;
  Apply();
  EXPECT_TRUE(AttachLater(session, 2).status().ok());
  EXPECT_EQ(AttachLater(session, 101).reason(), "LIMIT_EXCEEDED") << "on another device";
  engine_options_.file_systems_per_uid = 2;
  Apply();
  EXPECT_TRUE(AttachLater(session, 101).status().ok());
}

}  // namespace
}  // namespace ckptd
