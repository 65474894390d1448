#include "storage/base/memory/measured_copy.h"

#include <string.h>

#include <algorithm>

namespace ckptd {
namespace {

constexpr uint64_t kNotHere = ~uint64_t{0};  // The cost of a loop that this processor does not have.
constexpr uint64_t kTiePercent = 3;  // A loop must be faster by more than this to displace a preferred one.

// Faults in the pages of the slice. The copy that follows overwrites every byte.
void Touch(char* to, const char* from, size_t size) {
  for (size_t at = 0; at < size; at += 4096) {
    *static_cast<volatile char*>(to + at) = *static_cast<const volatile char*>(from + at);
  }
}

}  // namespace

void MeasuredCopy::Copy(char* to, const char* from, size_t size) {
  while (size > 0) {
    size_t step = std::min(size, kSlice);
    if (step < kLeastSlice || !TrySlice(to, from, step)) {
      step = std::min(size, kPause / 8);  // So that a turn comes due within a long copy, too.
      CopyUntimed(to, from, step);
    }
    to += step;
    from += step;
    size -= step;
  }
}

void MeasuredCopy::CopyUntimed(char* to, const char* from, size_t size) {
  untimed_bytes_.fetch_add(size, std::memory_order_relaxed);
  if (size < kLeastStreamed) {
    memcpy(to, from, size);
    return;
  }
  const CopyLoop* loop = fastest();
  (loop == nullptr ? Preferred() : loop)->copy(to, from, size);
}

const CopyLoop* MeasuredCopy::Preferred() const {
  const auto loops = loops_();
  return &*std::find_if(loops.begin(), loops.end(), [](const CopyLoop& loop) { return loop.works_here(); });
}

bool MeasuredCopy::IsDue(int64_t turn) const {
  const int64_t later_round = turn / static_cast<int64_t>(loops_().size()) - kRounds + 1;
  if (later_round <= 0) return true;
  return untimed_bytes_.load(std::memory_order_relaxed) >= static_cast<uint64_t>(later_round) * kPause;
}

bool MeasuredCopy::TrySlice(char* to, const char* from, size_t size) {
  int64_t turn = next_turn_.load(std::memory_order_relaxed);
  do {
    if (!IsDue(turn)) return false;
  } while (!next_turn_.compare_exchange_weak(turn, turn + 1, std::memory_order_relaxed));
  const auto loops = loops_();
  const auto count = static_cast<int64_t>(loops.size());
  const CopyLoop& loop = loops[static_cast<size_t>(turn % count)];
  const bool works = loop.works_here();
  // In the first rounds the target is mostly memory that was never used: faults would drown the difference
  // between the loops. Later rounds measure the pages as the copy meets them: a loop that waits for the
  // translation of each page's address must pay for that, and Touch would take it away.
  if (turn < count * kRounds) Touch(to, from, size);
  const int64_t begin = now_();
  (works ? loop : *Preferred()).copy(to, from, size);
  const auto elapsed = static_cast<uint64_t>(std::max<int64_t>(now_() - begin, 1));
  cost_[turn % (count * kRounds)].store(works ? elapsed * 1'000'000 / size : kNotHere,
                                        std::memory_order_relaxed);
  const int64_t ended = ended_turns_.fetch_add(1, std::memory_order_acq_rel) + 1;
  if (ended >= count * kRounds && ended % count == 0) fastest_.store(Choose(), std::memory_order_release);
  return true;
}

const CopyLoop* MeasuredCopy::Choose() const {
  const auto loops = loops_();
  uint64_t medians[kMaxLoops] = {};  // Read once: another thread may end a turn meanwhile.
  for (size_t i = 0; i < loops.size(); ++i) medians[i] = Median(static_cast<int>(i));
  const uint64_t best = *std::min_element(medians, medians + loops.size());
  size_t chosen = 0;
  while (medians[chosen] == kNotHere || medians[chosen] > best + best * kTiePercent / 100) ++chosen;
  return &loops[chosen];
}

uint64_t MeasuredCopy::Median(int loop) const {
  const int count = static_cast<int>(loops_().size());
  uint64_t costs[kRounds];
  for (int i = 0; i < kRounds; ++i) costs[i] = cost_[i * count + loop].load(std::memory_order_relaxed);
  std::sort(costs, costs + kRounds);
  return costs[kRounds / 2];
}

}  // namespace ckptd
