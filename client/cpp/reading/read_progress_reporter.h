// Reports the progress of reading a checkpoint to the daemon, for watchers: once a second while a reading
// goes on, and once at the end if anything was reported before.
#ifndef CKPTD_CLIENT_CPP_READING_READ_PROGRESS_REPORTER_H_
#define CKPTD_CLIENT_CPP_READING_READ_PROGRESS_REPORTER_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

#include "absl/status/status.h"
#include "storage/base/clock.h"
#include "storage/base/mutex.h"

namespace ckptd::client {

// One reading at a time, by one thread. The first reading starts a thread that sends the reports, so that no
// reader waits for the daemon. Reporting is best effort: it never affects the read.
class ReadProgressReporter {
 public:
  // Sends one report: the bytes read so far, and the total of all readings that were begun. Calls do not
  // overlap, because a later report could overtake an earlier one. After an error other than
  // DEADLINE_EXCEEDED there are no more reports.
  using Report = std::function<absl::Status(int64_t read_bytes, int64_t total_bytes)>;

  explicit ReadProgressReporter(Report report, Duration interval = std::chrono::seconds(1));
  ~ReadProgressReporter();  // Calls Finish.
  ReadProgressReporter(const ReadProgressReporter&) = delete;
  ReadProgressReporter& operator=(const ReadProgressReporter&) = delete;

  // Begins a reading of `size` bytes. Any thread atomically adds the bytes that it has read to the result; a
  // sum above `size` counts as `size`.
  uint64_t* Begin(int64_t size);
  // Ends the reading. `whole`: all of it was read.
  void End(bool whole);
  // Waits for the report under way and ends the thread. Then sends a last report, if there was one before and
  // it said less than this one does.
  void Finish();

 private:
  void Run();
  int64_t ReadBytes() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Report report_;
  const Duration interval_;
  const pid_t pid_;
  uint64_t read_bytes_ = 0;              // Bytes of this reading; atomic.
  std::unique_ptr<std::thread> thread_;  // Null until the first reading.
  Mutex mutex_;
  CondVar changed_;
  Instant next_report_ ABSL_GUARDED_BY(mutex_);
  int64_t ended_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // Bytes read by the readings that have ended.
  int64_t size_ ABSL_GUARDED_BY(mutex_) = 0;         // Bytes of this reading.
  int64_t total_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // Bytes of all readings that were begun.
  int64_t reported_ ABSL_GUARDED_BY(mutex_) = 0;
  bool is_reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_idle_ ABSL_GUARDED_BY(mutex_) = false;  // The thread waits for a reading.
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  bool disabled_ ABSL_GUARDED_BY(mutex_) = false;  // The daemon has gone, or no thread could be made.
};

}  // namespace ckptd::client
#endif  // CKPTD_CLIENT_CPP_READING_READ_PROGRESS_REPORTER_H_
