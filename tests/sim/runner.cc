#include "tests/sim/runner.h"

#include "tests/sim/world.h"

namespace ckptd::sim {

Result RunPlan(const Plan& plan, bool trace) { return World(plan, trace).Run(); }

std::string Report(uint64_t seed, const Result& result) {
  std::vector<std::function<void(Plan&)>> simplifications;
  for (int DiskFaults::*fault :
       {&DiskFaults::slow, &DiskFaults::write, &DiskFaults::create, &DiskFaults::publish,
        &DiskFaults::indeterminate, &DiskFaults::discard, &DiskFaults::evict, &DiskFaults::trash,
        &DiskFaults::record, &DiskFaults::pin, &DiskFaults::open, &DiskFaults::rescan, &DiskFaults::read})
    simplifications.push_back([fault](Plan& plan) { plan.faults.*fault = 0; });
  for (bool Plan::*choice :
       {&Plan::growing, &Plan::skip, &Plan::supersede, &Plan::resaves, &Plan::grpc_only, &Plan::overlap,
        &Plan::conflicts, &Plan::short_timeouts, &Plan::shared, &Plan::users, &Plan::hostile})
    simplifications.push_back([choice](Plan& plan) { plan.*choice = false; });
  simplifications.push_back([](Plan& plan) { plan.uploads.faults = 0; });
  simplifications.push_back([](Plan& plan) { plan.uploads = {}; });
  return ReportCase<Plan>(PlanOf(seed), result, "//tests/sim:soak", RunPlan, simplifications);
}

}  // namespace ckptd::sim
