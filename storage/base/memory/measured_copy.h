// A copy that finds the fastest loop by itself, while it does its first work.
#ifndef CKPTD_STORAGE_BASE_MEMORY_MEASURED_COPY_H_
#define CKPTD_STORAGE_BASE_MEMORY_MEASURED_COPY_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "storage/base/memory/copy_loops.h"

namespace ckptd {

// Copies like memcpy. The first copies try all loops in rounds, each on a slice of the real work, and time
// them; from then on the fastest one copies. So the choice fits this processor, this memory and the number of
// threads that copy at once, and costs no more than copying some tens of MiB by slower loops. Another round
// follows after each kPause, because what else the machine did during the first ones may have spoiled them: a
// wrong choice lasts for a few of these rounds, and not for the life of the process. They cost below one
// percent. A copy of slices that are too small to time uses the preferred loop.
//
// Any number of threads may copy at once. It needs no constructor at run time, and nothing of the C++ runtime
// library.
class MeasuredCopy {
 public:
  using Now = int64_t (*)();  // Nanoseconds.

  static constexpr int kRounds = 7;  // Before the first choice. The median of the last ones counts.
  static constexpr size_t kPause = size_t{256} << 20;  // Bytes that are copied between two later rounds.
  static constexpr int kMaxLoops = 8;
  static constexpr size_t kLeastSlice = size_t{64} << 10;  // Bytes. Less takes too short to time.
  static constexpr size_t kSlice = size_t{1} << 20;        // Of a trial.
  static constexpr size_t kLeastStreamed = 4096;           // Fewer bytes are copied by memcpy.

  // Both functions may be called from any thread.
  constexpr MeasuredCopy(std::span<const CopyLoop> (*loops)(), Now now) : loops_(loops), now_(now) {}

  void Copy(char* to, const char* from, size_t size);

  // The loop that is the fastest by now; null as long as that is not known.
  const CopyLoop* fastest() const { return fastest_.load(std::memory_order_acquire); }

 private:
  const CopyLoop* Preferred() const;
  // Copies a slice by the loop whose turn it is. Returns false, with nothing copied, if no turn is due.
  bool TrySlice(char* to, const char* from, size_t size);
  bool IsDue(int64_t turn) const;
  void CopyUntimed(char* to, const char* from, size_t size);
  const CopyLoop* Choose() const;
  uint64_t Median(int loop) const;

  std::span<const CopyLoop> (*loops_)();
  Now now_;
  std::atomic<const CopyLoop*> fastest_{nullptr};
  // Turns count on for ever. Loop i has the turns i, i + (number of loops), and so on.
  std::atomic<int64_t> next_turn_{0};
  std::atomic<int64_t> ended_turns_{0};
  std::atomic<uint64_t> untimed_bytes_{0};
  std::atomic<uint64_t> cost_[kMaxLoops * kRounds] = {};  // Of the last turns: femtoseconds for a byte.
};

}  // namespace ckptd
#endif  // CKPTD_STORAGE_BASE_MEMORY_MEASURED_COPY_H_
