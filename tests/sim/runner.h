// Runs cases, and makes one that fails as short as it goes.
#ifndef CKPTD_TESTS_SIM_RUNNER_H_
#define CKPTD_TESTS_SIM_RUNNER_H_

#include <map>
#include <string>

#include "tests/sim/plan.h"
#include "tests/sim/world.h"

namespace ckptd::sim {

Result RunPlan(const Plan& plan, bool trace = false);

// Drops operations and faults for as long as the same kind of promise is broken, for at most `runs`
// runs.
Plan Shrink(Plan plan, int runs);

// The seed's violation, the shrunk plan and the last events of it, for people; how to run it again.
std::string Report(uint64_t seed, const Result& result);

struct Totals {
  int64_t seeds = 0, steps = 0;
  std::map<std::string, int64_t> counts;
  void Add(const Result& result);
  std::string Words() const;
};

}  // namespace ckptd::sim
#endif  // CKPTD_TESTS_SIM_RUNNER_H_
