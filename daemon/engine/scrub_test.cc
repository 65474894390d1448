// Promise 7, found before a restore needs it: idle time is used to read committed checkpoints back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/engine_fixture.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class ScrubTest : public EngineTest {
 protected:
  void SetUp() override {
    engine_options_.scrub_period = std::chrono::hours(1);
    engine_options_.scrub_bytes_per_second = 100;
    Start(16);
    sessions_ = Launch("a", 1);
    for (const char* tag : {"one", "two"}) SaveAll(sessions_, tag, 1);
    RunQueued([&] { return Tags().size() == 2; });
    AdvanceClock(std::chrono::seconds(2));  // It has seen them.
  }
  int Reads() { return ios_[1]->calls["ReadBack"]; }
  // As often as the daemon's ticks.
  void AdvanceClock(std::chrono::seconds time) {
    for (std::chrono::seconds passed{0}; passed < time; passed += std::chrono::seconds(1))
      EngineTest::AdvanceClock(std::chrono::seconds(1));
  }
  v1::Checkpoint Get(const std::string& tag) {
    v1::GetCheckpointRequest request;
    request.set_name(run_ + "/checkpoints/" + tag);
    Answer<v1::Checkpoint> answer;
    engine_->GetCheckpoint(Caller{0, 0, true}, request, answer.reply());
    RunQueued();
    return answer.get();
  }
  std::vector<SessionId> sessions_;
};

TEST_F(ScrubTest, ReadsEachCheckpointOncePerPeriod) {
  AdvanceClock(std::chrono::seconds(3000));
  EXPECT_EQ(Reads(), 0);
  EXPECT_FALSE(Get("one").has_scrub_time());
  AdvanceClock(std::chrono::seconds(700));
  EXPECT_EQ(Reads(), 2);
  EXPECT_TRUE(Get("one").has_scrub_time());
  EXPECT_TRUE(Get("two").has_scrub_time());
  AdvanceClock(std::chrono::seconds(2800));
  EXPECT_EQ(Reads(), 2);
  AdvanceClock(std::chrono::seconds(900));
  EXPECT_EQ(Reads(), 4);
  EXPECT_THAT(disks_[1]->readers, IsEmpty());
}

TEST_F(ScrubTest, PausesWhileRunSavesOrRestores) {
  const auto opened = Open(sessions_[0], "one");
  AdvanceClock(std::chrono::seconds(4000));
  EXPECT_EQ(Reads(), 0);
  const auto begun = Begin(sessions_[0], BeginOf(0, "three", 3, 100));
  Close(sessions_[0], opened.get().lease());
  AdvanceClock(std::chrono::seconds(100));
  EXPECT_EQ(Reads(), 0);
  engine_->SessionClosed(sessions_[0], "ended");  // And with it the save.
  RunQueued();
  AdvanceClock(std::chrono::seconds(10));
  EXPECT_EQ(Reads(), 2);
}

TEST_F(ScrubTest, StaysWithinItsRate) {
  const auto sessions = Launch("b", 1);
  SaveAll(sessions, "large", 1);
  RunQueued([&] { return Tags().size() == 3; });
  disks_[1]->manifests.rbegin()->second.summary.set_chunk_bytes(10);  // Ten chunks of 0.1 s each.
  AdvanceClock(std::chrono::seconds(2));
  clock_.now += std::chrono::hours(2);
  for (int tick = 0; tick < 10000 && !Get("large").has_scrub_time(); ++tick) {
    clock_.now += std::chrono::milliseconds(50);
    engine_->Tick();
    RunQueued();
  }
  EXPECT_EQ(Reads(), 12);
  EXPECT_GE(clock_.now - Instant(), std::chrono::hours(3) + std::chrono::milliseconds(900));
}

TEST_F(ScrubTest, MarksDamageBeforeAnybodyNeedsTheCheckpoint) {
  ios_[1]->errors["ReadBack"] =
      MakeError(absl::StatusCode::kDataLoss, "CORRUPT_FILE", "rank0.pt: chunk 3 differs",
                {{"path", "rank0.pt"}, {"chunk", "3"}, {"expected", "0x1"}});
  AdvanceClock(std::chrono::seconds(3610));
  const v1::Checkpoint one = Get("one");
  ASSERT_TRUE(one.has_damage());
  EXPECT_EQ(one.damage().path(), "rank0.pt");
  EXPECT_EQ(one.damage().chunk(), 3);
  EXPECT_THAT(one.damage().message(), HasSubstr("found when it was read back"));
  EXPECT_TRUE(disks_[1]->committed.begin()->second.damage.has_value()) << "and it is remembered";
  ios_[1]->errors.clear();
  AdvanceClock(std::chrono::seconds(4000));
  EXPECT_EQ(Reads(), 2) << "of damaged ones nothing is read";
  EXPECT_EQ(ios_[1]->calls["OpenCheckpoint"], 2);
}

TEST_F(ScrubTest, MissingFileIsDamageAndDiskErrorIsNot) {
  disks_[1]->unreadable.insert(disks_[1]->committed.begin()->first);
  ios_[1]->errors["ReadBack"] = MakeError(absl::StatusCode::kDataLoss, "IO_ERROR", "the disk");
  AdvanceClock(std::chrono::seconds(3610));
  EXPECT_TRUE(Get("one").has_damage());
  EXPECT_FALSE(Get("two").has_damage());
  EXPECT_THAT(observer_.warnings, ::testing::Contains(HasSubstr("two could not be read back")));
}

TEST_F(ScrubTest, ReleasesCheckpointThatRetentionEvicts) {
  disks_[1]->manifests.begin()->second.summary.set_chunk_bytes(10);
  ios_[1]->held.insert("ReadBack");
  AdvanceClock(std::chrono::seconds(3610));
  EXPECT_THAT(disks_[1]->readers, SizeIs(1));
  SaveAll(sessions_, "three", 3, 1);
  RunQueued([&] { return Tags() == std::vector<std::string>{"three"}; });
  ios_[1]->ReleaseHeld();
  AdvanceClock(std::chrono::seconds(5));
  EXPECT_THAT(disks_[1]->readers, IsEmpty());
  EXPECT_EQ(Reads(), 1) << "of ten";
  EXPECT_THAT(Tags(), ElementsAre("three"));
}

TEST_F(ScrubTest, ReadsNothingWithoutPeriod) {
  engine_options_.scrub_period = Duration::zero();
  disks_.clear();
  Start(16);
  const auto sessions = Launch("b", 1);
  SaveAll(sessions, "one", 1);
  RunQueued([&] { return Tags().size() == 1; });
  AdvanceClock(std::chrono::seconds(10));
  clock_.now += std::chrono::hours(1000);
  AdvanceClock(std::chrono::seconds(10));
  EXPECT_EQ(Reads(), 0);
}

}  // namespace
}  // namespace ckptd
