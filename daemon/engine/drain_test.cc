// An operator stops new saves before a restart, and undoes that.
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"
#include "tests/testing/engine_fixture.h"

namespace ckptd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class DrainTest : public EngineTest {
 protected:
  static Caller Root() { return Caller{.uid = 0, .privileged = true}; }
  absl::StatusOr<v1::Status> Drain(const std::string& message = "", bool undo = false) {
    v1::DrainRequest request;
    request.set_message(message);
    request.set_undo(undo);
    return engine_->SetDrained(Root(), request);
  }
  v1::DrainStatus Status() { return engine_->GetStatus(Root()).drain(); }
};

TEST_F(DrainTest, RefusesNewSavesSaysWhoDrainedAndWhatToDoUntilItIsUndone) {
  auto sessions = Launch("a", 1);
  ASSERT_TRUE(Drain("a new kernel").ok());
  auto refused = Begin(sessions[0], BeginOf(0, "one", 1, 100));
  EXPECT_EQ(refused.reason(), reason::kNodeDrained);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()),
              AllOf(HasSubstr("uid 0 has drained it at 2023-11-14 22:13:20 UTC (a new kernel)"),
                    HasSubstr("ckptctl drain --undo")));
  EXPECT_EQ(engine_->GetStatus(Root()).state(), "DRAINED");
  EXPECT_FALSE(engine_->GetStatus(Root()).draining()) << "the daemon does not end";
  ASSERT_TRUE(Drain("", /*undo=*/true).ok());
  EXPECT_FALSE(engine_->GetStatus(Root()).has_drain());
  EXPECT_EQ(engine_->GetStatus(Root()).state(), "SERVING");
  SaveAll(sessions, "one", 1);
  RunQueued();
  EXPECT_EQ(engine_->GetStatus(Root()).runs(0).latest().tag(), "one");
}

TEST_F(DrainTest, LetsTheOtherRanksBeginASaveThatHasBegunAndFinishesIt) {
  auto sessions = Launch("a", 2);
  auto first = BeginOf(0, "one", 1, 100), second = BeginOf(1, "one", 1, 100);
  auto begun = Begin(sessions[0], first);
  ASSERT_TRUE(Drain().ok());
  EXPECT_EQ(Status().unfinished_size(), 1);
  EXPECT_TRUE(Status().unfinished(0).lost());
  EXPECT_EQ(Status().unfinished(0).tag(), "one");
  auto joined = Begin(sessions[1], second);
  RunQueued([&] { return begun.has() && joined.has(); });
  ASSERT_TRUE(joined.status().ok()) << joined.status();
  ASSERT_TRUE(Seal(sessions[0], first).status().ok());
  EXPECT_THAT(Status().unfinished(0).waits_for(), HasSubstr("ranks 1 to seal"));
  ios_[1]->hold_writes = true;
  ASSERT_TRUE(Seal(sessions[1], second).status().ok());
  EXPECT_FALSE(Status().drained());
  EXPECT_FALSE(Status().unfinished(0).lost()) << "the daemon publishes it before it ends";
  ios_[1]->ReleaseHeld();
  RunQueued();
  EXPECT_TRUE(Status().drained());
  EXPECT_EQ(engine_->GetStatus(Root()).runs(0).latest().tag(), "one");
}

TEST_F(DrainTest, WaitsForRetention) {
  auto sessions = Launch("a", 1);
  SaveAll(sessions, "one", 1, 1);
  ios_[1]->held.insert("Evict");
  SaveAll(sessions, "two", 2, 1);
  RunQueued();
  ASSERT_TRUE(Drain().ok());
  ASSERT_EQ(Status().unfinished_size(), 1);
  EXPECT_FALSE(Status().unfinished(0).lost());
  EXPECT_EQ(engine_->GetStatus(Root()).state(), "DRAINING");
  ios_[1]->ReleaseHeld();
  RunQueued();
  EXPECT_EQ(engine_->GetStatus(Root()).state(), "DRAINED");
}

TEST_F(DrainTest, ReadersAndRestoresGoOn) {
  auto sessions = Launch("a", 1);
  SaveAll(sessions, "one", 1);
  RunQueued();
  ASSERT_TRUE(Drain().ok());
  auto reader = Trainer("reader");
  auto opened = Open(reader, "one");
  EXPECT_TRUE(opened.status().ok()) << opened.status();
  EXPECT_TRUE(Status().drained()) << "a reader has nothing to lose";
}

TEST_F(DrainTest, IsForRootAndTheDaemonsUserAlone) {
  const absl::Status refused = engine_->SetDrained(Caller{.uid = 1000}, v1::DrainRequest()).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("you are uid 1000"));
  EXPECT_FALSE(engine_->GetStatus(Root()).has_drain());
  EXPECT_EQ(ReasonOf(Drain(std::string(501, 'm')).status()), reason::kInvalidArgument);
  auto sessions = Launch("a", 1);
  Begin(sessions[0], BeginOf(0, "one", 1, 100));
  ASSERT_TRUE(Drain("why").ok());
  const v1::DrainStatus seen = engine_->GetStatus(Caller{.uid = 1000}).drain();
  EXPECT_EQ(seen.message(), "why");
  EXPECT_EQ(seen.unfinished_size(), 0) << "names of roots of other users";
  EXPECT_FALSE(seen.drained());
}

}  // namespace
}  // namespace ckptd
