// Seam: makes and frees the memory of segments in the background, because either takes long. Real: a thread
// of the pool's own. Fake: tests/sim has one that answers when its simulated clock says so.
#ifndef CKPTD_DAEMON_MEMORY_POPULATOR_H_
#define CKPTD_DAEMON_MEMORY_POPULATOR_H_

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/memory/segment_memory.h"
#include "daemon/memory/segment_pool.h"

namespace ckptd {

struct MadeSegment {
  SegmentId id = 0;
  absl::StatusOr<SegmentMemory> memory;
  absl::Status kept;  // OK: the descriptor store holds it for the next daemon.
};

class Populator {
 public:
  // Called once for each Make(), in their order, on any thread, never from within Make().
  using Made = std::function<void(MadeSegment)>;

  // When the destructor has returned, no callback runs any more.
  virtual ~Populator() = default;
  virtual void Make(SegmentId id) = 0;
  // Frees the memory before it makes any more, so a caller that frees and then asks never exceeds its budget.
  virtual void Free(SegmentId id, SegmentMemory memory) = 0;
  // Removes the segment from the descriptor store. `forgotten` gets the result, on any thread, never from
  // within Forget(); it is dropped when the populator is destroyed first.
  virtual void Forget(SegmentId id, std::function<void(absl::Status)> forgotten) = 0;
};

// A populator with a thread of its own, on which it calls `made`. Its destructor waits about 100 ms at most;
// segments that were asked for and not begun are not made. `store` may be null.
std::unique_ptr<Populator> StartPopulator(int64_t segment_bytes, PagePolicy pages, DescriptorStore* store,
                                          Populator::Made made);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_MEMORY_POPULATOR_H_
