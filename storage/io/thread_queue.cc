// The back end for systems that forbid io_uring: pread, pwrite and fdatasync on a few threads. They return
// their results, and Poll runs the completions on the owner's thread.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/mutex.h"
#include "storage/base/start_thread.h"
#include "storage/base/status_macros.h"
#include "storage/io/io_queue.h"

namespace ckptd {
namespace {

constexpr Duration kLongestWait = std::chrono::hours(1);

struct Request {
  enum class Kind { kWrite, kRead, kSync } kind;
  Handle file;
  std::byte* data;  // Not written to if this is a write.
  size_t size;
  int64_t offset;
  IoDone done;
  int64_t result = 0;
};

int64_t Perform(const Request& request) {
  for (;;) {
    int64_t result = 0;
    switch (request.kind) {
      case Request::Kind::kWrite:
        result = ::pwrite(request.file, request.data, request.size, request.offset);
        break;
      case Request::Kind::kRead:
        result = ::pread(request.file, request.data, request.size, request.offset);
        break;
      case Request::Kind::kSync:
        return ::fdatasync(request.file) == 0 ? 0 : -errno;
    }
    if (result >= 0) return result;
    if (errno != EINTR) return -errno;
  }
}

class ThreadQueue : public IoQueue {
 public:
  // Starts as many of the threads as the system allows. An error if it allows none.
  absl::Status Start(int threads) {
    for (int i = 0; i < threads; ++i) {
      absl::StatusOr<std::thread> thread = StartThread(absl::StrCat("ckptd-disk-", i), [this] { Work(); });
      if (!thread.ok()) return threads_.empty() ? thread.status() : absl::OkStatus();
      threads_.push_back(*std::move(thread));
    }
    return absl::OkStatus();
  }

  ~ThreadQueue() override {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      work_.SignalAll();
    }
    for (std::thread& thread : threads_) thread.join();
  }

  std::string_view name() const override { return "threads"; }

  void Write(Handle file, std::span<const std::byte> from, int64_t offset, IoDone done) override {
    Add({Request::Kind::kWrite, file, const_cast<std::byte*>(from.data()), from.size(), offset,
         std::move(done)});
  }
  void Read(Handle file, std::span<std::byte> into, int64_t offset, IoDone done) override {
    Add({Request::Kind::kRead, file, into.data(), into.size(), offset, std::move(done)});
  }
  void SyncData(Handle file, IoDone done) override {
    Add({Request::Kind::kSync, file, nullptr, 0, 0, std::move(done)});
  }

  void Poll(Duration timeout) override {
    for (Request& request : WaitForCompleted(std::min(timeout, kLongestWait))) {
      --in_flight_;
      request.done(request.result);
    }
  }

  void Wake() override {
    MutexLock lock(mutex_);
    woken_ = true;
    completion_.Signal();
  }

  int in_flight() const override { return in_flight_; }

 private:
  void Add(Request request) {
    ++in_flight_;
    MutexLock lock(mutex_);
    requests_.push_back(std::move(request));
    work_.Signal();
  }

  std::vector<Request> WaitForCompleted(Duration timeout) {
    const Instant deadline = SystemClock().Now() + timeout;
    MutexLock lock(mutex_);
    while (completed_.empty() && !woken_) {
      const Duration left = deadline - SystemClock().Now();
      if (left <= Duration::zero()) break;
      completion_.WaitFor(mutex_, left);
    }
    woken_ = false;
    return std::exchange(completed_, {});
  }

  // Runs until it is told to stop and no request is left.
  void Work() {
    MutexLock lock(mutex_);
    for (;;) {
      while (requests_.empty() && !stopping_) work_.Wait(mutex_);
      if (requests_.empty()) return;
      Request request = std::move(requests_.front());
      requests_.pop_front();
      mutex_.Unlock();
      request.result = Perform(request);
      mutex_.Lock();
      completed_.push_back(std::move(request));
      completion_.Signal();
    }
  }

  int in_flight_ = 0;  // Used by the owner only.
  std::vector<std::thread> threads_;

  Mutex mutex_;
  CondVar work_;        // Signals the threads: requests_, stopping_.
  CondVar completion_;  // Signals the owner: completed_, woken_.
  std::deque<Request> requests_ ABSL_GUARDED_BY(mutex_);
  std::vector<Request> completed_ ABSL_GUARDED_BY(mutex_);
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<IoQueue>> MakeThreadQueue(int threads) {
  if (threads < 1) {
    return InvalidArgument(absl::StrCat("an I/O queue needs at least one thread, not ", threads));
  }
  auto queue = std::make_unique<ThreadQueue>();
  CKPTD_RETURN_IF_ERROR(queue->Start(threads));
  return queue;
}

}  // namespace ckptd
