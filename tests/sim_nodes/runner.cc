#include "tests/sim_nodes/runner.h"

#include "tests/sim_nodes/world.h"

namespace ckptd::sim_nodes {

sim::Result RunPlan(const Plan& plan, bool trace) { return World(plan, trace).Run(); }

std::string Report(uint64_t seed, const sim::Result& result) {
  using Faults = SharedDiskFaults;
  std::vector<std::function<void(Plan&)>> simplifications;
  for (int Faults::*fault : {&Faults::slow, &Faults::stale, &Faults::write, &Faults::make, &Faults::publish,
                             &Faults::lost_publish, &Faults::scan, &Faults::open, &Faults::remove})
    simplifications.push_back([fault](Plan& plan) { plan.disk.*fault = 0; });
  using Etcd = SimulatedEtcd::Faults;
  for (int Etcd::*fault : {&Etcd::lost_requests, &Etcd::lost_answers, &Etcd::late_requests})
    simplifications.push_back([fault](Plan& plan) { plan.etcd.*fault = 0; });
  for (Duration Etcd::*time : {&Etcd::longest_way, &Etcd::latest_event, &Etcd::lease_patience})
    simplifications.push_back([time](Plan& plan) { plan.etcd.*time = Etcd().*time; });
  for (bool Plan::*choice : {&Plan::resaves, &Plan::overlap, &Plan::subsets, &Plan::skip,
                             &Plan::short_timeouts, &Plan::damage, &Plan::pointers, &Plan::clocks_apart})
    simplifications.push_back([choice](Plan& plan) { plan.*choice = false; });
  simplifications.push_back([](Plan& plan) { plan.suspect = 0; });
  simplifications.push_back([](Plan& plan) { plan.uploads.faults = 0; });
  simplifications.push_back([](Plan& plan) { plan.uploads = {}; });
  return sim::ReportCase<Plan>(PlanOf(seed), result, "//tests/sim_nodes:soak", RunPlan, simplifications);
}

}  // namespace ckptd::sim_nodes
