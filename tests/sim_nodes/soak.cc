// Runs the simulation of several nodes for a given time on fresh seeds, or repeats one seed.
//
//   bazel run --config=release //tests/sim_nodes:soak -- --seconds=600
//   bazel run --config=release //tests/sim_nodes:soak -- --seed=1234 [--trace]
//   bazel run --config=release //tests/sim_nodes:soak -- --first=1 --seeds=1000
#include "tests/sim_nodes/runner.h"

int main(int argc, char** argv) {
  using namespace ckptd::sim_nodes;
  return ckptd::sim::Soak({[](uint64_t seed, bool trace) { return RunPlan(PlanOf(seed), trace); }, Report},
                          argc, argv);
}
