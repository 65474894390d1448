// A fixed set of seeds: the same on every machine, so that a failure is reproducible.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <vector>

#include "tests/sim_nodes/runner.h"

namespace ckptd::sim_nodes {
namespace {

constexpr uint64_t kFirstSeed = 1, kSeeds = 500;
constexpr int64_t kFewestSteps = 8'000'000;

TEST(NodesSimulationTest, KeepsEveryPromiseForEverySeed) {
  sim::Totals totals;
  for (uint64_t seed = kFirstSeed; seed < kFirstSeed + kSeeds; ++seed) {
    const sim::Result result = RunPlan(PlanOf(seed));
    ASSERT_EQ(result.violation, "") << Report(seed, result);
    totals.Add(result);
  }
  std::printf("%s\n", totals.ToString().c_str());
  EXPECT_GE(totals.steps, kFewestSteps);
  // The seeds together must cover these situations.
  for (const char* what : {"abort ",
                           "abort SEALED",
                           "agreed",
                           "coordinator hangs",
                           "daemon killed",
                           "daemon paused",
                           "damage reported ",
                           "drained",
                           "etcd full",
                           "etcd restored",
                           "fenced",
                           "opened",
                           "put back",
                           "registers anew",
                           "registration lost",
                           "resume not finished CHECKPOINT_DAMAGED",
                           "resume not finished RESUME_FAILED",
                           "resume not finished RESUME_INCOMPLETE",
                           "resumed from a bucket",
                           "resumed from a checkpoint",
                           "state COMMITTED ",
                           "state ENDED ADMISSION_TIMEOUT",
                           "state ENDED FENCED",
                           "state ENDED IO_ERROR",
                           "state ENDED LEDGER_UNAVAILABLE",
                           "state ENDED NODE_LOST",
                           "state ENDED POOL_EXHAUSTED",
                           "state ENDED RANKS_MISSING",
                           "state ENDED SAVE_ABORTED",
                           "state ENDED SESSION_LOST",
                           "state ENDED SKIPPED",
                           "state ENDED SUSPECT",
                           "state ENDED TAG_FOREIGN"}) {
    EXPECT_GE(totals.counts[what], 10) << what;
  }
}

// Each seed broke a promise before that was mended.
TEST(NodesSimulationTest, KeepsEveryPromiseForSeedsThatFailedOnce) {
  const std::vector<uint64_t> seeds = {637,
                                       648,
                                       1100,
                                       1129,
                                       1577,
                                       1839,
                                       2987,
                                       3141,
                                       7520,
                                       10277,
                                       32712,
                                       1000426,
                                       2002119,
                                       50500838,
                                       310000046,
                                       400130030,
                                       800301590,
                                       1100400249,
                                       1100500866,
                                       1700600652,
                                       2504000828,
                                       3543276674799124,
                                       3893316622915912,
                                       480301273906123,
                                       579763267286332,
                                       880535172613761,
                                       1627121143351140,
                                       1785586402750153,
                                       1878593712765518,
                                       1895355054050684,
                                       832290087865714,
                                       2988927748762225,
                                       3060005585989579,
                                       3436641987895794};
  for (const uint64_t seed : seeds) {
    const sim::Result result = RunPlan(PlanOf(seed));
    EXPECT_EQ(result.violation, "") << Report(seed, result);
  }
}

TEST(NodesSimulationTest, SameSeedReplaysSameHistory) {
  for (uint64_t seed : {3u, 17u, 99u}) {
    EXPECT_EQ(RunPlan(PlanOf(seed), true).trace, RunPlan(PlanOf(seed), true).trace) << seed;
  }
}

}  // namespace
}  // namespace ckptd::sim_nodes
