#include "daemon/engine/run/save_lifecycle.h"

#include <gtest/gtest.h>

#include <vector>

namespace ckptd {
namespace {

constexpr SavePhase kBeforeTheEnd[] = {SavePhase::kTarget,     SavePhase::kGathering, SavePhase::kQueued,
                                       SavePhase::kAccepted,   SavePhase::kAdmitted,  SavePhase::kWritten,
                                       SavePhase::kPublishing, SavePhase::kGivingUp};

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
  EXPECT_EQ(life.phase(), SavePhase::kWritten);
  life.Publishing();
  EXPECT_EQ(life.phase(), SavePhase::kPublishing);
  life.Postponed();
  EXPECT_EQ(life.phase(), SavePhase::kWritten) << "it is tried again";
  life.Publishing();
  life.Committed();
  EXPECT_EQ(life.phase(), SavePhase::kLoading);
  life.End(v1::COMMITTED);
  EXPECT_EQ(life.phase(), SavePhase::kEnded);
  EXPECT_EQ(life.level(), v1::COMMITTED);
}

TEST(SaveLifecycleTest, ANodeMayWriteItsPartBeforeAnotherNodeHasSealed) {
  SaveLifecycle life(SavePhase::kAccepted, v1::OPEN);
  life.Admitted();
  life.Written();
  life.Sealed();
  EXPECT_EQ(life.phase(), SavePhase::kWritten);
  EXPECT_EQ(life.level(), v1::SEALED);
}

TEST(SaveLifecycleTest, OnlyADurablePartIsPublishedAndOnlyAPublicationIsPostponed) {
  for (const SavePhase phase : kBeforeTheEnd) {
    SaveLifecycle life(phase, v1::SEALED);
    life.Publishing();
    EXPECT_EQ(life.phase(), phase == SavePhase::kWritten ? SavePhase::kPublishing : phase);
    SaveLifecycle other(phase, v1::SEALED);
    other.Postponed();
    EXPECT_EQ(other.phase(), phase == SavePhase::kPublishing ? SavePhase::kWritten : phase);
  }
}

TEST(SaveLifecycleTest, WhatTheOtherNodesHaveDecidedCountsInEachPhase) {
  for (const SavePhase phase : kBeforeTheEnd) {
    SaveLifecycle life(phase, v1::OPEN);
    life.Sealed();
    EXPECT_EQ(life.phase(), phase);
    life.Committed();
    EXPECT_EQ(life.phase(), SavePhase::kLoading);
    EXPECT_FALSE(life.GiveUp());
  }
}

TEST(SaveLifecycleTest, TheAuthorityIsToldOnceThatASaveFailsAndNotOfOneThatIsBeingPublished) {
  for (const SavePhase phase : kBeforeTheEnd) {
    SaveLifecycle life(phase, v1::OPEN);
    EXPECT_EQ(life.GiveUp(), phase <= SavePhase::kWritten);
    EXPECT_FALSE(life.GiveUp());
    EXPECT_EQ(life.phase(), phase == SavePhase::kPublishing ? phase : SavePhase::kGivingUp);
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
