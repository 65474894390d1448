#include "daemon/engine/roots/root_scanner.h"

#include "tests/testing/engine_class_fixture.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class RootScannerTest : public ClassTest {
 protected:
  int loads_ = 0, usable_ = 0;
  RootScanner scanner_{&clock_,
                       this,
                       {.written_bytes = [](const Run&) { return int64_t{7}; },
                        .load =
                            [this](Run* run, RootSnapshot, int64_t written_bytes) {
                              EXPECT_EQ(written_bytes, 7);
                              ++loads_;
                              run->read_only = false;
                            },
                        .usable = [this](Run*) { ++usable_; }}};
};

TEST_F(RootScannerTest, RootStaysReadOnlyUntilAScanSucceeds) {
  Run* run = AddRun(1000);
  ios_[run]->errors["Rescan"] = absl::InternalError("broken");
  scanner_.AwaitScan(run);
  EXPECT_TRUE(run->read_only);
  RunCallbacks();
  EXPECT_TRUE(run->read_only);
  EXPECT_TRUE(scanner_.IsRetryScheduled(*run));
  clock_.Advance(std::chrono::seconds(2));
  scanner_.OnTick(run, clock_.Now());
  RunCallbacks();
  EXPECT_THAT(warnings_, SizeIs(1)) << "said once";
  ios_[run]->errors.clear();
  clock_.Advance(std::chrono::seconds(2));
  scanner_.OnTick(run, clock_.Now());
  RunCallbacks();
  EXPECT_FALSE(run->read_only);
  EXPECT_EQ(usable_, 1);
  EXPECT_FALSE(scanner_.IsRetryScheduled(*run));
  EXPECT_THAT(infos_, ElementsAre(HasSubstr("takes saves again")));
}

TEST_F(RootScannerTest, ScanThatNobodyHadToKnowOfIsNotLogged) {
  Run* run = AddRun(1000);
  scanner_.AwaitScan(run);
  RunCallbacks();
  EXPECT_FALSE(run->read_only);
  EXPECT_THAT(infos_, IsEmpty());
  run->read_only = true;
  scanner_.ScanAndLog(run);
  RunCallbacks();
  EXPECT_THAT(infos_, ElementsAre(HasSubstr("takes saves again")));
}

TEST_F(RootScannerTest, AScanThatIsAskedForDuringAScanFollowsIt) {
  Run* run = AddRun(1000);
  scanner_.Scan(run);
  scanner_.Scan(run);
  RunCallbacks();
  EXPECT_EQ(ios_[run]->calls["Rescan"], 2);
  EXPECT_EQ(loads_, 1) << "the first result was out of date";
}

}  // namespace
}  // namespace ckptd
