#include "tests/sim/cases.h"

#include <chrono>
#include <cstdio>
#include <random>

#include "absl/strings/numbers.h"

namespace ckptd::sim {
namespace {

bool Flag(const std::string& argument, const std::string& name, uint64_t* value) {
  const std::string prefix = "--" + name + "=";
  return argument.starts_with(prefix) && absl::SimpleAtoi(argument.substr(prefix.size()), value);
}

}  // namespace

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

std::string KindOf(const std::string& violation) {
  std::string kind;
  for (char c : violation.substr(0, violation.find(';'))) {
    if (c < '0' || c > '9') kind += c;
  }
  return kind.substr(0, 40);
}

int Soak(const Simulation& simulation, int argc, char** argv) {
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
  Totals totals;
  for (uint64_t i = 0; seeds != 0 ? i < seeds : std::chrono::steady_clock::now() < end; ++i) {
    const Result result = simulation.run(first + i, trace);
    for (const std::string& line : result.trace) std::printf("%s\n", line.c_str());
    if (!result.violation.empty()) {
      std::printf("%s", simulation.report(first + i, result).c_str());
      return 1;
    }
    totals.Add(result);
  }
  std::printf("clean: %s\n", totals.ToString().c_str());
  return 0;
}

}  // namespace ckptd::sim
