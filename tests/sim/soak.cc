// Runs the simulation for a given time on fresh seeds, or repeats one seed.
//
//   bazel run --config=release //tests/sim:soak -- --seconds=600
//   bazel run --config=release //tests/sim:soak -- --seed=1234 [--trace]
//   bazel run --config=release //tests/sim:soak -- --first=1 --seeds=1000
#include <chrono>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>

#include "absl/strings/numbers.h"
#include "tests/sim/runner.h"

namespace {

bool Flag(const std::string& argument, const std::string& name, uint64_t* value) {
  const std::string prefix = "--" + name + "=";
  return argument.starts_with(prefix) && absl::SimpleAtoi(argument.substr(prefix.size()), value);
}

}  // namespace

int main(int argc, char** argv) {
  using ckptd::sim::PlanOf;
  uint64_t seconds = 60, seed = 0, seeds = 0, first = 0;
  bool trace = false;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--trace") {
      trace = true;
    } else if (!Flag(argument, "seconds", &seconds) && !Flag(argument, "seed", &seed) &&
               !Flag(argument, "seeds", &seeds) && !Flag(argument, "first", &first)) {
      std::fprintf(stderr, "usage: %s [--seconds=N | --seed=S [--trace] | --first=S --seeds=N]\n", argv[0]);
      return 2;
    }
  }
  if (seed != 0) first = seed, seeds = 1;
  if (first == 0) first = std::random_device()() * uint64_t{1000003} + 1;
  std::printf("first seed %llu\n", static_cast<unsigned long long>(first));
  std::fflush(stdout);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  ckptd::sim::Totals totals;
  for (uint64_t i = 0; seeds != 0 ? i < seeds : std::chrono::steady_clock::now() < end; ++i) {
    const ckptd::sim::Result result = ckptd::sim::RunPlan(PlanOf(first + i), trace);
    for (const std::string& line : result.trace) std::printf("%s\n", line.c_str());
    if (!result.violation.empty()) {
      std::printf("%s", ckptd::sim::Report(first + i, result).c_str());
      return 1;
    }
    totals.Add(result);
  }
  std::printf("clean: %s\n", totals.ToString().c_str());
  return 0;
}
