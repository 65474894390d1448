// Runs cases, and shrinks the plan of a failing one.
#ifndef CKPTD_TESTS_SIM_RUNNER_H_
#define CKPTD_TESTS_SIM_RUNNER_H_

#include <map>
#include <string>

#include "tests/sim/plan.h"
#include "tests/sim/world.h"

namespace ckptd::sim {

Result RunPlan(const Plan& plan, bool trace = false);

// Drops operations and faults for as long as a violation of the same kind occurs, in at most `runs` runs.
Plan Shrink(Plan plan, int runs);

// Returns a report: the seed's violation, the shrunk plan, its last events, and the command that repeats it.
std::string Report(uint64_t seed, const Result& result);

struct Totals {
  int64_t seeds = 0, steps = 0;
  std::map<std::string, int64_t> counts;
  void Add(const Result& result);
  std::string ToString() const;
};

}  // namespace ckptd::sim
#endif  // CKPTD_TESTS_SIM_RUNNER_H_
