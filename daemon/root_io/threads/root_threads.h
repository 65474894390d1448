// The threads behind a RootIo, and how their answers reach the engine's thread.
#ifndef CKPTD_DAEMON_ROOT_IO_THREADS_ROOT_THREADS_H_
#define CKPTD_DAEMON_ROOT_IO_THREADS_ROOT_THREADS_H_

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "daemon/engine/seams/root_io.h"
#include "daemon/root_io/threads/file_system_workers.h"
#include "storage/base/clock.h"
#include "storage/base/mutex.h"
#include "storage/commit/shared/shared_scan.h"
#include "storage/io/part_writer.h"
#include "storage/io/probe.h"

namespace ckptd {

struct ThreadedRootIoOptions {
  std::string node = "local";
  IoBackend backend = IoBackend::kAuto;
  PartWriterOptions writer;  // `direct`: false forbids direct I/O; true leaves it to the probe.
  int checksum_threads = 1;
  IoQueueMakers queues = {};        // Makes the queues of both back ends.
  Duration staleness = kStaleness;  // For how long names in a root of several nodes may be old.
};

// Posts callbacks to the engine's thread until it is closed. Thread-safe.
class EngineGate {
 public:
  using Post = std::function<void(absl::AnyInvocable<void()>)>;

  explicit EngineGate(Post post) : post_(std::move(post)) {}
  void Send(absl::AnyInvocable<void()> work) {
    MutexLock lock(mutex_);
    if (post_) post_(std::move(work));
  }
  void Close() {
    MutexLock lock(mutex_);
    post_ = nullptr;
  }

 private:
  Mutex mutex_;
  Post post_ ABSL_GUARDED_BY(mutex_);
};

// What the RootIos of one file system share.
struct RootThreads {
  ThreadedRootIoOptions options;
  Clock* clock = nullptr;
  std::shared_ptr<EngineGate> gate;
  std::shared_ptr<char> device;                 // Keeps the threads of the file system alive.
  std::shared_ptr<FileSystemWorkers> metadata;  // Metadata operations and part writes.
  std::shared_ptr<FileSystemWorkers> queries;   // So that a Begin need not wait for a commit's syncs.
  std::shared_ptr<FileSystemWorkers> scrubber;  // Reads files back, and removes trash.
  std::shared_ptr<FileSystemWorkers> trials;  // Of roots of several nodes: waits for other nodes. Else null.
  std::shared_ptr<ChecksumPool> checks;       // Compares resident copies with their checksums.
};

// How many threads compare resident copies with their checksums. A reader waits for them, and one alone would take
// longer than the copy that comes next.
inline int CheckThreads() { return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 8); }

// The answers of one RootIo. Used on the engine's thread. Its destruction drops the answers that are pending.
class RootAnswers {
 public:
  explicit RootAnswers(std::shared_ptr<EngineGate> gate) : gate_(std::move(gate)) {}

  // A callback for any thread that runs `done` on the engine's thread.
  template <typename T>
  absl::AnyInvocable<void(T)> To(Callback<T> done) {
    ++*pending_;
    return [gate = gate_, pending = std::weak_ptr<int>(pending_), done = std::move(done)](T result) mutable {
      gate->Send(
          [pending = std::move(pending), done = std::move(done), result = std::move(result)]() mutable {
            if (const std::shared_ptr<int> alive = pending.lock()) {
              --*alive;
              done(std::move(result));
            }
          });
    };
  }
  bool has_pending() const { return *pending_ > 0; }

 private:
  const std::shared_ptr<EngineGate> gate_;
  const std::shared_ptr<int> pending_ = std::make_shared<int>(0);  // Callbacks that have not run.
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ROOT_IO_THREADS_ROOT_THREADS_H_
