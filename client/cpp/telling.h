// How far the reading of a checkpoint has come, told to the daemon for those who watch: once a second while a
// reading goes on, and at the end where anything was told.
#ifndef CKPTD_CLIENT_CPP_TELLING_H_
#define CKPTD_CLIENT_CPP_TELLING_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

#include "absl/status/status.h"
#include "storage/base/clock.h"
#include "storage/base/mutex.h"

namespace ckptd::client {

// One reading at a time, by one thread; another one, made for the first reading, tells. Nobody who reads
// waits for it.
class Telling {
 public:
  // One report, of bytes read and of those in all that were begun; called one at a time, else a later one
  // could overtake it. After an error other than DEADLINE_EXCEEDED nothing more is told.
  using Tell = std::function<absl::Status(int64_t read_bytes, int64_t total_bytes)>;

  explicit Telling(Tell tell, Duration every = std::chrono::seconds(1));
  ~Telling();  // As Finish.
  Telling(const Telling&) = delete;
  Telling& operator=(const Telling&) = delete;

  // A reading of so many bytes begins. What it has done is added to the result, atomically, by any thread;
  // more than `size` counts as `size`.
  uint64_t* Begin(int64_t size);
  // It is over. `whole`: all of it was read.
  void End(bool whole);
  // The last word, where any was said and it is not what was said last. Waits for the report under way.
  void Finish();

 private:
  void Run();
  int64_t Done() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Tell tell_;
  const Duration every_;
  const pid_t pid_;
  uint64_t done_ = 0;                    // Of this reading; atomic.
  std::unique_ptr<std::thread> thread_;  // Null until the first reading.
  Mutex mutex_;
  CondVar changed_;
  Instant next_ ABSL_GUARDED_BY(mutex_);
  int64_t before_ ABSL_GUARDED_BY(mutex_) = 0;  // Of the readings that are over.
  int64_t size_ ABSL_GUARDED_BY(mutex_) = 0;    // Of this one.
  int64_t total_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t told_ ABSL_GUARDED_BY(mutex_) = 0;
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool idle_ ABSL_GUARDED_BY(mutex_) = false;  // The thread waits for a reading.
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  bool gone_ ABSL_GUARDED_BY(mutex_) = false;  // The daemon, or the means to tell it.
};

}  // namespace ckptd::client
#endif  // CKPTD_CLIENT_CPP_TELLING_H_
