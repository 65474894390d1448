// Who makes and frees the memory of segments, so that nobody else waits for it. Real: a thread of the pool's
// own; tests/sim has one that answers when its clock says so.
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
  absl::Status kept;  // Whether the store has it.
};

class Populator {
 public:
  // Called once for each Make(), in their order, on any thread but never inside the call.
  using Made = std::function<void(MadeSegment)>;

  // No `made` is called any more when this has returned.
  virtual ~Populator() = default;
  virtual void Make(SegmentId id) = 0;
  // Freed before anything else is made, so that who frees first and asks then never has more than its budget.
  virtual void Free(SegmentId id, SegmentMemory memory) = 0;
  // The store is to keep it no more. `forgotten` hears whether that is so, on any thread but never inside the
  // call, and not at all when the populator ends before.
  virtual void Forget(SegmentId id, std::function<void(absl::Status)> forgotten) = 0;
};

// With a thread of its own, on which it calls `made`. Ending it takes some 100 ms at most; what was asked for
// and not begun is not made. `store` may be null.
std::unique_ptr<Populator> StartPopulator(int64_t segment_bytes, PagePolicy pages, DescriptorStore* store,
                                          Populator::Made made);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_MEMORY_POPULATOR_H_
