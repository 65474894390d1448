#include "tests/sim/runner.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace ckptd::sim {
namespace {

constexpr int kShrinkRuns = 400;
constexpr size_t kShownEvents = 250;

// Returns the violation without numbers and names, so that violations can be compared.
std::string KindOf(const std::string& violation) {
  std::string kind;
  for (char c : violation.substr(0, violation.find(';'))) {
    if (c < '0' || c > '9') kind += c;
  }
  return kind.substr(0, 40);
}

}  // namespace

Result RunPlan(const Plan& plan, bool trace) { return World(plan, trace).Run(); }

Plan Shrink(Plan plan, int runs) {
  const std::string kind = KindOf(RunPlan(plan).violation);
  auto still_fails = [&runs, &kind](const Plan& candidate) {
    if (runs-- <= 0) return false;
    const std::string violation = RunPlan(candidate).violation;
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
  for (int DiskFaults::*fault :
       {&DiskFaults::slow, &DiskFaults::write, &DiskFaults::create, &DiskFaults::publish,
        &DiskFaults::indeterminate, &DiskFaults::discard, &DiskFaults::evict, &DiskFaults::trash,
        &DiskFaults::record, &DiskFaults::pin, &DiskFaults::open, &DiskFaults::rescan, &DiskFaults::read}) {
    Plan candidate = plan;
    candidate.faults.*fault = 0;
    if (plan.faults.*fault != 0 && still_fails(candidate)) plan = std::move(candidate);
  }
  for (bool Plan::*choice :
       {&Plan::growing, &Plan::skip, &Plan::supersede, &Plan::resaves, &Plan::grpc_only, &Plan::overlap,
        &Plan::conflicts, &Plan::short_timeouts, &Plan::shared, &Plan::users, &Plan::hostile}) {
    Plan candidate = plan;
    candidate.*choice = false;
    if (plan.*choice && still_fails(candidate)) plan = std::move(candidate);
  }
  return plan;
}

std::string Report(uint64_t seed, const Result& result) {
  const Plan plan = PlanOf(seed);
  const Plan shrunk = Shrink(plan, kShrinkRuns);
  const Result last = RunPlan(shrunk, /*trace=*/true);
  std::string report = absl::StrCat(
      "seed ", seed, " breaks a promise: ", result.violation, "\n\nshrunk from ", plan.operations.size(),
      " operations to ", shrunk.operations.size(), ": ", last.violation, "\n", shrunk.ToString(), "\n");
  for (const Operation& operation : shrunk.operations)
    absl::StrAppend(&report, "  ", operation.ToString(), "\n");
  absl::StrAppend(&report, "\nits last events:\n");
  const size_t shown = std::min(kShownEvents, last.trace.size());
  for (size_t i = last.trace.size() - shown; i < last.trace.size(); ++i)
    absl::StrAppend(&report, "  ", last.trace[i], "\n");
  absl::StrAppend(&report, "\nagain: bazel run --config=release //tests/sim:soak -- --seed=", seed, "\n");
  return report;
}

void Totals::Add(const Result& result) {
  ++seeds;
  steps += result.steps;
  for (const auto& count : result.counts) counts[count.first] += count.second;
}

std::string Totals::ToString() const {
  std::string words = absl::StrCat(seeds, " seeds, ", steps, " steps");
  for (const auto& count : counts) absl::StrAppend(&words, ", ", count.first, " ", count.second);
  return words;
}

}  // namespace ckptd::sim
