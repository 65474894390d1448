#include "daemon/engine/run/save_lifecycle.h"

#include <gtest/gtest.h>

#include <vector>

namespace ckptd {
namespace {

constexpr SavePhase kBeforeTheEnd[] = {SavePhase::kTarget,   SavePhase::kGathering, SavePhase::kQueued,
                                       SavePhase::kAccepted, SavePhase::kAdmitted,  SavePhase::kPublishing,
                                       SavePhase::kGivingUp};

TEST(SaveLifecycleTest, ASaveOfOneNodeBecomesACheckpoint) {
  SaveLifecycle life;
  life.Measured();
  EXPECT_EQ(life.phase(), SavePhase::kGathering);
  life.SizesKnown();
  EXPECT_EQ(life.phase(), SavePhase::kQueued);
  life.Promised();
  EXPECT_EQ(life.phase(), SavePhase::kAccepted);
  life.Admitted();
  EXPECT_EQ(life.phase(), SavePhase::kAdmitted);
  EXPECT_EQ(life.level(), v1::OPEN);
  life.Sealed();
  EXPECT_EQ(life.level(), v1::SEALED);
  life.Written();
  EXPECT_EQ(life.phase(), SavePhase::kPublishing);
  life.NotPublished();
  EXPECT_EQ(life.phase(), SavePhase::kAdmitted) << "it is tried again";
  life.Written();
  life.End(v1::COMMITTED);
  EXPECT_EQ(life.phase(), SavePhase::kEnded);
  EXPECT_EQ(life.level(), v1::COMMITTED);
}

TEST(SaveLifecycleTest, ANodeMayWriteItsPartBeforeAnotherNodeHasSealed) {
  SaveLifecycle life(SavePhase::kAccepted, v1::OPEN);
  life.Admitted();
  life.Written();
  life.Sealed();
  EXPECT_EQ(life.phase(), SavePhase::kPublishing);
  EXPECT_EQ(life.level(), v1::SEALED);
}

TEST(SaveLifecycleTest, WhatTheOtherNodesHaveDecidedCountsInEachPhase) {
  for (const SavePhase phase : kBeforeTheEnd) {
    SaveLifecycle life(phase, v1::OPEN);
    life.Sealed();
    EXPECT_EQ(life.phase(), phase);
    life.Committed();
    EXPECT_EQ(life.phase(), SavePhase::kPublishing);
  }
}

TEST(SaveLifecycleTest, TheAuthorityIsToldOnceThatASaveFails) {
  for (const SavePhase phase : kBeforeTheEnd) {
    SaveLifecycle life(phase, v1::OPEN);
    EXPECT_EQ(life.GiveUp(), phase != SavePhase::kGivingUp);
    EXPECT_FALSE(life.GiveUp());
    EXPECT_EQ(life.phase(), SavePhase::kGivingUp);
  }
}

TEST(SaveLifecycleTest, ASaveFailsOnceAndKeepsItsLevelUntilThatIsReported) {
  for (const SavePhase phase : kBeforeTheEnd) {
    SaveLifecycle life(phase, v1::SEALED);
    EXPECT_TRUE(life.Fail(v1::SUPERSEDED));
    EXPECT_FALSE(life.Fail(v1::FAILED));
    EXPECT_EQ(life.phase(), SavePhase::kFailing);
    EXPECT_EQ(life.end_level(), v1::SUPERSEDED);
    EXPECT_EQ(life.level(), v1::SEALED) << "recovery may still publish it";
    life.Reported();
    EXPECT_EQ(life.level(), v1::SUPERSEDED);
    life.End(life.end_level());
    EXPECT_FALSE(life.Fail(v1::FAILED));
    EXPECT_EQ(life.phase(), SavePhase::kEnded);
  }
}

}  // namespace
}  // namespace ckptd
