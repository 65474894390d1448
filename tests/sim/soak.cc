// Runs the simulation for a given time on fresh seeds, or repeats one seed.
//
//   bazel run --config=release //tests/sim:soak -- --seconds=600
//   bazel run --config=release //tests/sim:soak -- --seed=1234 [--trace]
//   bazel run --config=release //tests/sim:soak -- --first=1 --seeds=1000
#include "tests/sim/runner.h"

int main(int argc, char** argv) {
  using namespace ckptd::sim;
  return Soak({[](uint64_t seed, bool trace) { return RunPlan(PlanOf(seed), trace); }, Report}, argc, argv);
}
