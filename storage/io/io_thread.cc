#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "storage/base/mutex.h"
#include "storage/base/start_thread.h"
#include "storage/base/status_macros.h"
#include "storage/io/part_writer.h"

namespace ckptd {
namespace {

// Any event ends a Poll, so nothing depends on this value.
constexpr Duration kPollTimeout = std::chrono::minutes(1);

}  // namespace

class IoThread::Impl {
 public:
  absl::Status Start(const std::string& name, IoQueueFactory factory) {
    CKPTD_ASSIGN_OR_RETURN(thread_,
                           StartThread(name, [this, factory = std::move(factory)] { Run(factory); }));
    return absl::OkStatus();
  }

  ~Impl() {
    if (!thread_.joinable()) return;
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      if (queue_ != nullptr) queue_->Wake();
    }
    thread_.join();
  }

  // OK once there is a queue; else the error.
  absl::Status WaitUntilStarted() {
    MutexLock lock(mutex_);
    while (!started_) changed_.Wait(mutex_);
    return status_;
  }

  void Post(absl::AnyInvocable<void(IoQueue&)> work) {
    MutexLock lock(mutex_);
    posted_.push_back(std::move(work));
    queue_->Wake();
  }

 private:
  using Work = absl::AnyInvocable<void(IoQueue&)>;

  void Run(const IoQueueFactory& factory) {
    absl::StatusOr<std::unique_ptr<IoQueue>> made = factory();
    {
      MutexLock lock(mutex_);
      status_ = made.status();
      if (made.ok()) queue_ = made->get();
      started_ = true;
      changed_.SignalAll();
    }
    if (!made.ok()) return;
    IoQueue& queue = **made;
    for (;;) {
      std::vector<Work> posted;
      bool stopping = false;
      {
        MutexLock lock(mutex_);
        posted.swap(posted_);
        stopping = stopping_;
      }
      if (stopping && posted.empty() && queue.in_flight() == 0) return;
      for (Work& work : posted) work(queue);
      queue.Poll(posted.empty() ? kPollTimeout : Duration::zero());
    }
  }

  std::thread thread_;
  Mutex mutex_;
  CondVar changed_;
  bool started_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  IoQueue* queue_ ABSL_GUARDED_BY(mutex_) = nullptr;  // Once set it lives as long as the thread.
  std::vector<Work> posted_ ABSL_GUARDED_BY(mutex_);
};

IoThread::IoThread() = default;
IoThread::~IoThread() = default;

absl::StatusOr<std::unique_ptr<IoThread>> IoThread::Start(std::string name, IoQueueFactory factory) {
  std::unique_ptr<IoThread> thread(new IoThread);
  thread->impl_ = std::make_unique<Impl>();
  CKPTD_RETURN_IF_ERROR(thread->impl_->Start(name, std::move(factory)));
  const absl::Status started = thread->impl_->WaitUntilStarted();
  if (!started.ok()) return started;
  return thread;
}

void IoThread::Post(absl::AnyInvocable<void(IoQueue&)> work) { impl_->Post(std::move(work)); }

}  // namespace ckptd
