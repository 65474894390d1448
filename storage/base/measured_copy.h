// A copy that finds the fastest loop by itself, while it does its first work.
#ifndef CKPTD_STORAGE_BASE_MEASURED_COPY_H_
#define CKPTD_STORAGE_BASE_MEASURED_COPY_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "storage/base/copy_loops.h"

namespace ckptd {

// Copies like memcpy. The first copies try all loops in turns, each on a slice of the real work, and time
// them; from then on the fastest one copies. So the choice fits this processor, this memory and the number of
// threads that copy at once, and costs no more than copying some tens of MiB by slower loops. A copy of
// slices that are too small to time uses the preferred loop.
//
// Any number of threads may copy at once. It needs no constructor at run time, and nothing of the C++ runtime
// library.
class MeasuredCopy {
 public:
  using Now = int64_t (*)();  // Nanoseconds.

  static constexpr int kRounds = 7;  // How often each loop is timed; the median counts.
  static constexpr int kMaxLoops = 8;
  static constexpr size_t kLeastSlice = size_t{64} << 10;  // Bytes. Less takes too short to time.
  static constexpr size_t kSlice = size_t{1} << 20;        // Of a trial.
  static constexpr size_t kLeastStreamed = 4096;           // Fewer bytes are copied by memcpy.

  // Both functions may be called from any thread.
  constexpr MeasuredCopy(std::span<const CopyLoop> (*loops)(), Now now) : loops_(loops), now_(now) {}

  void Copy(char* to, const char* from, size_t size);

  // The loop that was found to be the fastest; null as long as that is not known.
  const CopyLoop* fastest() const { return fastest_.load(std::memory_order_acquire); }

 private:
  const CopyLoop* Preferred() const;
  // Copies a slice by the loop whose turn it is. Returns false, with nothing copied, if no turns are left.
  bool TrySlice(char* to, const char* from, size_t size);
  const CopyLoop* Choose() const;
  uint64_t Median(int loop) const;

  std::span<const CopyLoop> (*loops_)();
  Now now_;
  std::atomic<const CopyLoop*> fastest_{nullptr};
  std::atomic<int> next_turn_{0};
  std::atomic<int> ended_turns_{0};
  std::atomic<uint64_t> cost_[kMaxLoops * kRounds] = {};  // Of each turn: femtoseconds for a byte.
};

}  // namespace ckptd
#endif  // CKPTD_STORAGE_BASE_MEASURED_COPY_H_
