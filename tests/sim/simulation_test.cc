// A fixed set of seeds: the same on every machine, so that it fails on none or on all.
#include <gtest/gtest.h>

#include <cstdio>

#include "tests/sim/runner.h"

namespace ckptd::sim {
namespace {

constexpr uint64_t kFirstSeed = 1, kSeeds = 500;
constexpr int64_t kFewestSteps = 1'000'000;

TEST(SimulationTest, EveryPromiseIsKeptUnderEverySeed) {
  Totals totals;
  for (uint64_t seed = kFirstSeed; seed < kFirstSeed + kSeeds; ++seed) {
    const Result result = RunPlan(PlanOf(seed));
    ASSERT_EQ(result.violation, "") << Report(seed, result);
    totals.Add(result);
  }
  std::printf("%s\n", totals.Words().c_str());
  EXPECT_GE(totals.steps, kFewestSteps);
  // It does what it is for.
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
                           "read ahead",
                           "read ahead and then from memory",
                           "damage read",
                           "mapped",
                           "mapped beyond its session, and as it was",
                           "begun by a hostile user",
                           "held by a hostile reader",
                           "intrusion",
                           "no room on disk",
                           "adopt ADOPTED ",
                           "adopt REFUSED ADOPT_ORDER"}) {
    EXPECT_GE(totals.counts[what], 10) << what;
  }
}

TEST(SimulationTest, SeedRunsTheSameTwice) {
  for (uint64_t seed : {3u, 17u, 99u}) {
    EXPECT_EQ(RunPlan(PlanOf(seed), true).trace, RunPlan(PlanOf(seed), true).trace) << seed;
  }
}

}  // namespace
}  // namespace ckptd::sim
