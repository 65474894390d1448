#include "daemon/engine/admission/memory_shares.h"

#include "storage/base/errors.h"
#include "tests/testing/engine_class_fixture.h"

namespace ckptd {
namespace {

TEST(MaxMinShareTest, IsAllThatThereIsWhenEverythingFits) { EXPECT_EQ(MaxMinShare({2, 3}, 10), 10); }

TEST(MaxMinShareTest, SmallDemandsAreMetAndTheOthersGetTheSame) {
  EXPECT_EQ(MaxMinShare({100, 2, 100}, 10), 4);
  EXPECT_EQ(MaxMinShare({100, 100}, 10), 5);
  EXPECT_EQ(MaxMinShare({}, 10), 10);
}

class MemorySharesTest : public ClassTest {
 protected:
  MemoryShares Shares(int percent) {
    return {pool_.get(), &saves_, &sizes_, percent, [this] { return readers_; }};
  }
  void Reserve(Save* save, int segments) {
    save->reservation = *pool_->Reserve({{0, segments}});
    save->life = SaveLifecycle(SavePhase::kAdmitted, v1::OPEN);
  }

  ExpectedSizes sizes_;
  std::map<uid_t, int64_t> readers_;
};

TEST_F(MemorySharesTest, AUserIsChargedForSavesAndReaders) {
  Reserve(AddSave(AddRun(1000), 1, 3 * kSegment), 3);
  AddSave(AddRun(2000), 1, 9 * kSegment);
  readers_[1000] = 1;
  const MemoryUse use = Shares(100).Use();
  EXPECT_EQ(use.Held(1000), 4);
  EXPECT_EQ(use.Held(2000), 0);
  EXPECT_EQ(use.users, 2);
  EXPECT_EQ(use.share, 6) << "user 1000 wants only 4 of 10";
}

TEST_F(MemorySharesTest, ASaveThatNeedsMoreThanOneUserMayHoldNeverFits) {
  Run* run = AddRun(1000);
  const MemoryShares shares = Shares(50);
  EXPECT_EQ(ReasonOf(shares.CheckUserLimit(*AddSave(run, 1, 6 * kSegment), shares.Use())), "POOL_TOO_SMALL");
  Save* held = AddSave(run, 1, 3 * kSegment);
  Reserve(held, 3);
  Save* next = AddSave(run, 1, 3 * kSegment);
  EXPECT_EQ(ReasonOf(shares.CheckUserLimit(*next, shares.Use())), "POOL_EXHAUSTED");
  EXPECT_EQ(shares.AwaitedSource(*next, shares.Use()), MemoryShares::Source::kOwnRun);
  Save* elsewhere = AddSave(AddRun(1000), 1, 3 * kSegment);
  EXPECT_EQ(shares.AwaitedSource(*elsewhere, shares.Use()), MemoryShares::Source::kOwnUser);
}

TEST_F(MemorySharesTest, APartGrowsBeyondTheShareOnlyWhileNobodyWaits) {
  Save* growing = AddSave(AddRun(1000), 1, 5 * kSegment);
  Reserve(growing, 5);
  Save* waiting = AddSave(AddRun(2000), 1, 9 * kSegment);
  const MemoryShares shares = Shares(100);
  EXPECT_TRUE(shares.CheckGrowth(*growing, 1).ok());
  waiting->WaitFor(WaitsFor::kDisk, "disk");
  EXPECT_TRUE(shares.CheckGrowth(*growing, 1).ok());
  waiting->WaitFor(WaitsFor::kMemory, "memory");
  EXPECT_EQ(ReasonOf(shares.CheckGrowth(*growing, 1)), "POOL_EXHAUSTED");
}

}  // namespace
}  // namespace ckptd
