// An IoQueue that fails, shortens and holds back operations where a test says so. The I/O thread creates it,
// so its faults are in an object of the test:
//
//   IoFaults faults;
//   faults.FailWrite(3, EIO);
//   auto factory = FaultyQueueFactory([] { return MakeThreadQueue(2); }, &faults);
#ifndef CKPTD_TESTS_TESTING_FAULTY_IO_QUEUE_H_
#define CKPTD_TESTS_TESTING_FAULTY_IO_QUEUE_H_

#include <cstdint>
#include <functional>
#include <map>

#include "absl/base/thread_annotations.h"
#include "storage/base/clock.h"
#include "storage/base/mutex.h"
#include "storage/io/io_queue.h"

namespace ckptd {

// Thread-safe. Must outlive the queue. Calls are numbered from 1 over the queue's life.
class IoFaults {
 public:
  // The nth write does nothing and completes with -error.
  void FailWrite(int nth, int error);
  // The nth write does nothing and completes with `result`.
  void AnswerWrite(int nth, int64_t result);
  // The nth sync (0: every sync) does nothing and completes with -error.
  void FailSync(int nth, int error);
  // Every write transfers at most this many bytes. 0: no limit.
  void ShortenWrites(size_t bytes);
  // Operations are done, but their completions wait until Release().
  void Hold();
  void Release();
  // Waits until `n` operations are done and wait for Release(). Returns false after `timeout`.
  bool WaitUntilHeld(int n, Duration timeout);

  int writes() const;  // Submitted so far.
  int syncs() const;
  int writes_in_flight() const;  // Submitted, and the completion has not begun.
  int most_in_flight() const;    // The highest number so far.

 private:
  friend class FaultyIoQueue;

  mutable Mutex mutex_;
  std::map<int, int64_t> write_answers_ ABSL_GUARDED_BY(mutex_);
  std::map<int, int> sync_errors_ ABSL_GUARDED_BY(mutex_);
  size_t longest_write_ ABSL_GUARDED_BY(mutex_) = 0;
  bool holding_ ABSL_GUARDED_BY(mutex_) = false;
  std::function<void()> wake_ ABSL_GUARDED_BY(mutex_);
  int writes_ ABSL_GUARDED_BY(mutex_) = 0;
  int syncs_ ABSL_GUARDED_BY(mutex_) = 0;
  int held_ ABSL_GUARDED_BY(mutex_) = 0;
  CondVar held_changed_;
  int writes_in_flight_ ABSL_GUARDED_BY(mutex_) = 0;
  int most_in_flight_ ABSL_GUARDED_BY(mutex_) = 0;
};

IoQueueFactory FaultyQueueFactory(IoQueueFactory base, IoFaults* faults);

}  // namespace ckptd
#endif  // CKPTD_TESTS_TESTING_FAULTY_IO_QUEUE_H_
