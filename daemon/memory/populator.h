// The pool's own thread: makes and frees the memory of segments, so that nobody else waits for it.
#ifndef CKPTD_DAEMON_MEMORY_POPULATOR_H_
#define CKPTD_DAEMON_MEMORY_POPULATOR_H_

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/memory/segment_memory.h"
#include "storage/base/mutex.h"

namespace ckptd {

class Populator {
 public:
  // `made` is called on the thread of the populator, once for each Make().
  Populator(int64_t segment_bytes, PagePolicy pages, std::function<void(absl::StatusOr<SegmentMemory>)> made);
  // Ends what is under way within some 100 ms; what was asked for and not begun is not made.
  ~Populator();

  void Make();
  // Freed before anything else is made, so that who frees first and asks then never has more than its budget.
  void Free(SegmentMemory memory);

 private:
  void Run();

  const int64_t segment_bytes_;
  const PagePolicy pages_;
  const std::function<void(absl::StatusOr<SegmentMemory>)> made_;
  std::atomic<bool> stop_{false};
  Mutex mutex_;
  CondVar changed_;
  int wanted_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<SegmentMemory> to_free_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_MEMORY_POPULATOR_H_
