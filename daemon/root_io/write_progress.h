// Whether writes that are under way on one file system go on.
#ifndef CKPTD_DAEMON_ROOT_IO_WRITE_PROGRESS_H_
#define CKPTD_DAEMON_ROOT_IO_WRITE_PROGRESS_H_

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>

#include "storage/base/clock.h"
#include "storage/base/mutex.h"

namespace ckptd {

// Thread-safe. Parts wait for one another, so what counts is that any of them gets ahead.
class WriteProgress {
 public:
  explicit WriteProgress(Clock* clock) : clock_(clock) {}

  struct Writing {
    std::shared_ptr<const std::atomic<int64_t>> bytes;
    int64_t seen = 0;
  };
  using Entry = std::list<Writing>::iterator;
  // `bytes` grows as the write gets ahead.
  Entry Begin(std::shared_ptr<const std::atomic<int64_t>> bytes);
  void End(Entry entry);

  // Since when none of the writes under way was seen to get ahead (seen by this call: ask now and then).
  // nullopt when there are none.
  std::optional<Instant> StuckSince();

 private:
  Clock* const clock_;
  Mutex mutex_;
  std::list<Writing> writing_ ABSL_GUARDED_BY(mutex_);
  Instant progress_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ROOT_IO_WRITE_PROGRESS_H_
