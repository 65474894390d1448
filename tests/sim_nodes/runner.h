// Runs the cases of the simulation of several nodes.
#ifndef CKPTD_TESTS_SIM_NODES_RUNNER_H_
#define CKPTD_TESTS_SIM_NODES_RUNNER_H_

#include <string>

#include "tests/sim/cases.h"
#include "tests/sim_nodes/plan.h"

namespace ckptd::sim_nodes {

sim::Result RunPlan(const Plan& plan, bool trace = false);

// Returns a report: the seed's violation, the shrunk plan, its last events, and the command that repeats it.
std::string Report(uint64_t seed, const sim::Result& result);

}  // namespace ckptd::sim_nodes
#endif  // CKPTD_TESTS_SIM_NODES_RUNNER_H_
