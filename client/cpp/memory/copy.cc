#include "client/cpp/memory/copy.h"

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>

namespace ckptd::client {
namespace {

// Copying fewer bytes costs less time than starting a thread.
constexpr size_t kMinShare = size_t{4} << 20;

}  // namespace

void PlanCopy(std::span<const std::span<const std::byte>> pieces,
              std::span<const std::span<std::byte>> targets, std::vector<CopyStep>* steps) {
  size_t target = 0, done = 0;
  for (std::span<const std::byte> piece : pieces) {
    while (!piece.empty()) {
      if (done == targets[target].size()) {
        ++target;
        done = 0;
        continue;
      }
      const size_t take = std::min(piece.size(), targets[target].size() - done);
      steps->push_back({targets[target].data() + done, piece.data(), take});
      done += take;
      piece = piece.subspan(take);
    }
  }
}

void ParallelFor(int count, int threads, const std::function<void(int)>& work) {
  std::atomic<int> next{0};
  auto run = [&] {
    for (int i = next++; i < count; i = next++) work(i);
  };
  std::vector<std::thread> others;
  try {
    for (int i = 1; i < std::min(threads, count); ++i) others.emplace_back(run);
  } catch (const std::system_error&) {
    // The system allows no more threads: those that there are do all of the work.
  }
  run();
  for (std::thread& other : others) other.join();
}

void RunCopy(CopyWay way, const std::vector<CopyStep>& steps, int threads) {
  size_t total = 0;
  for (const CopyStep& step : steps) total += step.size;
  const size_t shares = std::clamp<size_t>(total / kMinShare, 1, std::max(threads, 1));
  // Share i is the bytes [total * i / shares, total * (i + 1) / shares) of the concatenated steps.
  ParallelFor(static_cast<int>(shares), static_cast<int>(shares), [&](int share) {
    const size_t begin = total / shares * share;
    const size_t end = share + 1 == static_cast<int>(shares) ? total : total / shares * (share + 1);
    size_t at = 0;
    for (const CopyStep& step : steps) {
      const size_t from = std::max(begin, at), to = std::min(end, at + step.size);
      if (from < to) StreamingCopy(way, step.to + (from - at), step.from + (from - at), to - from);
      at += step.size;
      if (at >= end) break;
    }
  });
}

}  // namespace ckptd::client
