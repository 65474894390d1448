// Adds up the results of a simulation's cases, and shrinks and reports a case that has failed.
#ifndef CKPTD_TESTS_SIM_CASES_H_
#define CKPTD_TESTS_SIM_CASES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace ckptd::sim {

struct Result {
  std::string violation;  // Empty: every promise was kept.
  int64_t steps = 0;      // Events, perhaps without ticks.
  std::map<std::string, int64_t> counts;
  std::vector<std::string> trace;
};

struct Totals {
  int64_t seeds = 0, steps = 0;
  std::map<std::string, int64_t> counts;
  void Add(const Result& result);
  std::string ToString() const;
};

// A simulation, as a soak runs it.
struct Simulation {
  std::function<Result(uint64_t seed, bool trace)> run;
  std::function<std::string(uint64_t seed, const Result&)> report;
};

// The main() of a soak: runs fresh seeds for a time, or given ones.
int Soak(const Simulation& simulation, int argc, char** argv);

// The violation without numbers and names, so that violations can be compared.
std::string KindOf(const std::string& violation);

// Drops operations of a failing plan, and then makes the plan simpler, for as long as a violation of the same
// kind occurs, in at most `runs` runs. `simplifications`: each switches one feature off.
template <typename Plan>
Plan Shrink(Plan plan, int runs, const std::function<Result(const Plan&, bool trace)>& run,
            const std::vector<std::function<void(Plan&)>>& simplifications) {
  const std::string kind = KindOf(run(plan, false).violation);
  const auto still_fails = [&](const Plan& candidate) {
    if (runs-- <= 0) return false;
    const std::string violation = run(candidate, false).violation;
    return !violation.empty() && KindOf(violation) == kind;
  };
  // Tries to drop halves, then quarters, down to single operations.
  for (size_t chunk = std::max<size_t>(1, plan.operations.size() / 2); chunk > 0 && runs > 0; chunk /= 2) {
    for (size_t at = 0; at < plan.operations.size() && runs > 0;) {
      Plan candidate = plan;
      const auto first = candidate.operations.begin() + static_cast<ptrdiff_t>(at);
      candidate.operations.erase(
          first, first + static_cast<ptrdiff_t>(std::min(chunk, plan.operations.size() - at)));
      if (still_fails(candidate)) {
        plan = std::move(candidate);
      } else {
        at += chunk;
      }
    }
  }
  for (const auto& simplify : simplifications) {
    Plan candidate = plan;
    simplify(candidate);
    if (candidate.ToString() != plan.ToString() && still_fails(candidate)) plan = std::move(candidate);
  }
  return plan;
}

// The seed's violation, the shrunk plan, its last events, and the command that repeats the seed.
template <typename Plan>
std::string ReportCase(const Plan& plan, const Result& result, const std::string& soak,
                       const std::function<Result(const Plan&, bool trace)>& run,
                       const std::vector<std::function<void(Plan&)>>& simplifications) {
  constexpr int kShrinkRuns = 400;
  constexpr size_t kShownEvents = 250;
  const Plan shrunk = Shrink<Plan>(plan, kShrinkRuns, run, simplifications);
  const Result last = run(shrunk, /*trace=*/true);
  std::string report = absl::StrCat(
      "seed ", plan.seed, " breaks a promise: ", result.violation, "\n\nshrunk from ", plan.operations.size(),
      " operations to ", shrunk.operations.size(), ": ", last.violation, "\n", shrunk.ToString(), "\n");
  for (const auto& operation : shrunk.operations) absl::StrAppend(&report, "  ", operation.ToString(), "\n");
  absl::StrAppend(&report, "\nits last events:\n");
  const size_t shown = std::min(kShownEvents, last.trace.size());
  for (size_t i = last.trace.size() - shown; i < last.trace.size(); ++i)
    absl::StrAppend(&report, "  ", last.trace[i], "\n");
  absl::StrAppend(&report, "\nagain: bazel run --config=release ", soak, " -- --seed=", plan.seed, "\n");
  return report;
}

}  // namespace ckptd::sim
#endif  // CKPTD_TESTS_SIM_CASES_H_
