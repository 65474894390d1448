// Runs the cases of the simulation of one node.
#ifndef CKPTD_TESTS_SIM_RUNNER_H_
#define CKPTD_TESTS_SIM_RUNNER_H_

#include <string>

#include "tests/sim/cases.h"
#include "tests/sim/plan.h"

namespace ckptd::sim {

Result RunPlan(const Plan& plan, bool trace = false);

// Returns a report: the seed's violation, the shrunk plan, its last events, and the command that repeats it.
std::string Report(uint64_t seed, const Result& result);

}  // namespace ckptd::sim
#endif  // CKPTD_TESTS_SIM_RUNNER_H_
