// The pool's own thread: makes and frees the memory of segments, so that nobody else waits for it.
#ifndef CKPTD_DAEMON_MEMORY_POPULATOR_H_
#define CKPTD_DAEMON_MEMORY_POPULATOR_H_

#include <atomic>
#include <deque>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/memory/segment_memory.h"
#include "storage/base/mutex.h"

namespace ckptd {

class Populator {
 public:
  struct Made {
    SegmentId id = 0;
    absl::StatusOr<SegmentMemory> memory;
    absl::Status kept;  // Whether the store has it.
  };
  // `made` is called on the thread of the populator, once for each Make(), in their order. `store` may be
  // null.
  Populator(int64_t segment_bytes, PagePolicy pages, DescriptorStore* store, std::function<void(Made)> made);
  // Ends what is under way within some 100 ms; what was asked for and not begun is not made.
  ~Populator();

  void Make(SegmentId id);
  // Freed before anything else is made, so that who frees first and asks then never has more than its budget.
  void Free(SegmentId id, SegmentMemory memory);

 private:
  void Run();

  const int64_t segment_bytes_;
  const PagePolicy pages_;
  DescriptorStore* const store_;
  const std::function<void(Made)> made_;
  std::atomic<bool> stop_{false};
  Mutex mutex_;
  CondVar changed_;
  std::deque<SegmentId> wanted_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::pair<SegmentId, SegmentMemory>> to_free_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_MEMORY_POPULATOR_H_
