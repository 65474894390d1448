#include "daemon/history/save_outlook.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace ckptd {
namespace {

constexpr size_t kMostSaves = 20;
constexpr double kLeastCost = 1e-3;  // A save whose stall was not measured is not free.
// A job that has run for less time says nothing about how often it fails.
constexpr double kLeastRunningSeconds = 600;

// Of values that are not empty, without interpolation.
double Quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  const double place = std::ceil(share * static_cast<double>(values.size())) - 1;
  return values[static_cast<size_t>(std::clamp(place, 0.0, static_cast<double>(values.size() - 1)))];
}

template <typename T>
std::vector<T> Last(const std::vector<T>& all) {
  const auto count = static_cast<std::ptrdiff_t>(std::min(all.size(), kMostSaves));
  return {all.end() - count, all.end()};
}

// "0.25 s", "14 min", "6.5 h", "3 d".
std::string Words(double seconds) {
  if (seconds < 120) return absl::StrFormat("%.2g s", seconds);
  if (seconds < 7200) return absl::StrFormat("%.0f min", seconds / 60);
  if (seconds < 172800) return absl::StrFormat("%.1f h", seconds / 3600);
  return absl::StrFormat("%.0f d", seconds / 86400);
}

std::string Advice(const v1::SaveOutlook& outlook, bool is_told) {
  std::string text = absl::StrCat(
      "a save every ", Words(outlook.advised_interval_seconds()), " loses the least time",
      outlook.interval_seconds() > 0 ? absl::StrCat(" (now every ", Words(outlook.interval_seconds()), ")")
                                     : "",
      ": one stalls training for ", Words(std::max(outlook.stall_seconds(), kLeastCost)),
      " and is durable after ", Words(outlook.durable_seconds()), ", and the job fails every ",
      Words(outlook.seconds_between_failures()));
  if (is_told) return text;
  return absl::StrCat(
      text, outlook.restarts() == 0
                ? " (supposed: it has not restarted in that time)"
                : absl::StrCat(" (", outlook.restarts(), outlook.restarts() == 1 ? " restart" : " restarts",
                               " in ", Words(outlook.running_seconds()), ")"));
}

}  // namespace

double DalyInterval(double cost, double between_failures) {
  if (cost >= 2 * between_failures) return between_failures;
  const double ratio = cost / (2 * between_failures);
  return std::sqrt(2 * cost * between_failures) * (1 + std::sqrt(ratio) / 3 + ratio / 9) - cost;
}

void OutlookMaker::Add(const v1::HistoryEntry& entry) {
  if (entry.kind() != v1::HistoryEntry::SAVE || entry.level() != v1::COMMITTED) return;
  if (entry.committed_seconds() <= 0) return;  // An earlier daemon's save, whose times are not known.
  committed_.push_back({entry.size_bytes(), entry.stall_seconds(), entry.committed_seconds()});
  const double time = static_cast<double>(entry.time().seconds()) + entry.time().nanos() / 1e9;
  const auto [attempt, is_new] = attempts_.try_emplace(entry.attempt(), Attempt{time, time});
  if (is_new) return;
  intervals_.push_back(std::max(0.0, time - attempt->second.last));
  attempt->second.last = std::max(attempt->second.last, time);
}

std::optional<v1::SaveOutlook> OutlookMaker::Make(double between_failures) const {
  if (committed_.empty()) return std::nullopt;
  v1::SaveOutlook outlook;
  outlook.set_size_bytes(committed_.back().size_bytes);
  std::vector<double> stalls, durable;
  for (const Committed& save : Last(committed_)) {
    stalls.push_back(save.stall_seconds);
    // Of the present size: the bytes take most of the time. A smaller one is no faster than it was.
    const double growth =
        save.size_bytes > 0 ? static_cast<double>(outlook.size_bytes()) / static_cast<double>(save.size_bytes)
                            : 1;
    durable.push_back(save.durable_seconds * std::max(1.0, growth));
  }
  outlook.set_saves(static_cast<int>(stalls.size()));
  outlook.set_stall_seconds(Quantile(stalls, 0.5));
  outlook.set_durable_seconds(Quantile(durable, 0.9));
  if (!intervals_.empty()) outlook.set_interval_seconds(Quantile(Last(intervals_), 0.5));
  double running = 0;
  for (const auto& [number, attempt] : attempts_) running += attempt.last - attempt.first;
  outlook.set_restarts(static_cast<int>(attempts_.size()) - 1);
  outlook.set_running_seconds(running);
  const double seen = running / std::max(1, outlook.restarts());
  outlook.set_seconds_between_failures(between_failures > 0 ? between_failures : seen);
  if (outlook.seconds_between_failures() <= 0) return outlook;
  if (between_failures <= 0 && running < kLeastRunningSeconds) {
    outlook.set_advice(absl::StrCat("how often to save shows after ", Words(kLeastRunningSeconds),
                                    " of training (now ", Words(running),
                                    "); or name the time between two failures: ckptctl history --mtbf=7d"));
    return outlook;
  }
  const double cost = std::max(outlook.stall_seconds(), kLeastCost);
  outlook.set_advised_interval_seconds(
      std::max(DalyInterval(cost, outlook.seconds_between_failures()), outlook.durable_seconds()));
  outlook.set_advice(Advice(outlook, between_failures > 0));
  return outlook;
}

}  // namespace ckptd
