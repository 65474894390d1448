// Detects a file system on which no write in flight makes progress.
#ifndef CKPTD_DAEMON_ROOT_IO_THREADS_WRITE_PROGRESS_H_
#define CKPTD_DAEMON_ROOT_IO_THREADS_WRITE_PROGRESS_H_

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>

#include "storage/base/clock.h"
#include "storage/base/mutex.h"

namespace ckptd {

// Thread-safe. Parts wait for one another, so progress of any one of them counts as progress.
class WriteProgress {
 public:
  explicit WriteProgress(Clock* clock) : clock_(clock) {}

  struct Writing {
    std::shared_ptr<const std::atomic<int64_t>> bytes;
    int64_t seen = 0;
  };
  using Entry = std::list<Writing>::iterator;
  // `bytes` grows as the write makes progress.
  Entry Begin(std::shared_ptr<const std::atomic<int64_t>> bytes);
  void End(Entry entry);

  // Since when no write in flight has made progress; nullopt if none is in flight. Progress is observed by
  // this call only, so call it regularly.
  std::optional<Instant> StuckSince();

 private:
  Clock* const clock_;
  Mutex mutex_;
  std::list<Writing> writing_ ABSL_GUARDED_BY(mutex_);
  Instant progress_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ROOT_IO_THREADS_WRITE_PROGRESS_H_
