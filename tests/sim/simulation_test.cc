// A fixed set of seeds: the same on every machine, so that a failure is reproducible.
#include <gtest/gtest.h>

#include <cstdio>

#include "tests/sim/runner.h"

namespace ckptd::sim {
namespace {

constexpr uint64_t kFirstSeed = 1, kSeeds = 500;
constexpr int64_t kFewestSteps = 1'000'000;

TEST(SimulationTest, KeepsEveryPromiseForEverySeed) {
  Totals totals;
  for (uint64_t seed = kFirstSeed; seed < kFirstSeed + kSeeds; ++seed) {
    const Result result = RunPlan(PlanOf(seed));
    ASSERT_EQ(result.violation, "") << Report(seed, result);
    totals.Add(result);
  }
  std::printf("%s\n", totals.ToString().c_str());
  EXPECT_GE(totals.steps, kFewestSteps);
  // The seeds together must cover these situations.
  for (const char* what : {"ended COMMITTED",
                           "ended FAILED",
                           "ended SKIPPED",
                           "ended SUPERSEDED",
                           "ended INDETERMINATE",
                           "fenced",
                           "recovered",
                           "resumed from a checkpoint",
                           "drained",
                           "opened",
                           "no memory",
                           "prefetched",
                           "prefetched and then read from memory",
                           "damage read",
                           "mapped",
                           "mapping unchanged after its session ended",
                           "begun by a hostile user",
                           "held by a hostile reader",
                           "intrusion",
                           "no room on disk",
                           "moved in",
                           "put back",
                           "removed .ckptd",
                           "another model",
                           "suspect parts",
                           "uploaded",
                           "resumed from a bucket",
                           "resume of suspect ones alone",
                           "adopt ADOPTED ",
                           "adopt REFUSED ADOPT_ORDER"}) {
    EXPECT_GE(totals.counts[what], 10) << what;
  }
}

// Each seed once broke a promise, or showed a wrong rule of the oracle, before that was mended.
TEST(SimulationTest, KeepsEveryPromiseForSeedsThatFailedOnce) {
  for (const uint64_t seed :
       {uint64_t{984}, uint64_t{242547348640118}, uint64_t{1336030266085738}, uint64_t{1640427935280838},
        uint64_t{1652815908433246}, uint64_t{3819074629189622}, uint64_t{1914422378277570},
        uint64_t{2165534812640086}, uint64_t{2851917678728132}, uint64_t{4143069040171359},
        uint64_t{4212448710323158}}) {
    const Result result = RunPlan(PlanOf(seed));
    EXPECT_EQ(result.violation, "") << Report(seed, result);
  }
}

TEST(SimulationTest, SameSeedReplaysSameHistory) {
  for (uint64_t seed : {3u, 17u, 99u}) {
    EXPECT_EQ(RunPlan(PlanOf(seed), true).trace, RunPlan(PlanOf(seed), true).trace) << seed;
  }
}

}  // namespace
}  // namespace ckptd::sim
