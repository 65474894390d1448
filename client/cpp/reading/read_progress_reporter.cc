#include "client/cpp/reading/read_progress_reporter.h"

#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <utility>

namespace ckptd::client {

ReadProgressReporter::ReadProgressReporter(Report report, Duration interval)
    : report_(std::move(report)),
      interval_(interval),
      pid_(getpid()),
      next_report_(SystemClock().Now() + interval) {}

ReadProgressReporter::~ReadProgressReporter() { Finish(); }

uint64_t* ReadProgressReporter::Begin(int64_t size) {
  MutexLock lock(mutex_);
  __atomic_store_n(&read_bytes_, 0, __ATOMIC_RELAXED);
  size_ = size;
  total_bytes_ += size;
  is_reading_ = true;
  if (is_idle_) changed_.Signal();
  if (thread_ != nullptr || finished_ || disabled_) return &read_bytes_;
  try {
    thread_ = std::make_unique<std::thread>([this] { Run(); });
  } catch (const std::system_error&) {
    disabled_ = true;  // The system allows no more threads: read without reports.
  }
  return &read_bytes_;
}

void ReadProgressReporter::End(bool whole) {
  MutexLock lock(mutex_);
  ended_bytes_ = whole ? ended_bytes_ + size_ : ReadBytes();
  size_ = 0;
  is_reading_ = false;
}

int64_t ReadProgressReporter::ReadBytes() const {
  const auto done = static_cast<int64_t>(__atomic_load_n(&read_bytes_, __ATOMIC_RELAXED));
  return ended_bytes_ + std::min(done, size_);
}

void ReadProgressReporter::Run() {
  for (;;) {
    int64_t done = 0, total = 0;
    {
      MutexLock lock(mutex_);
      for (;;) {
        if (finished_ || disabled_) return;
        const Instant now = SystemClock().Now();
        if (now < next_report_) {
          changed_.WaitFor(mutex_, next_report_ - now);
        } else if (!is_reading_) {
          is_idle_ = true;
          changed_.Wait(mutex_);
          is_idle_ = false;
        } else {
          next_report_ = now + interval_;
          if (ReadBytes() != reported_) break;
        }
      }
      done = reported_ = ReadBytes();
      total = total_bytes_;
    }
    const absl::Status sent = report_(done, total);
    MutexLock lock(mutex_);
    disabled_ = !sent.ok() && !absl::IsDeadlineExceeded(sent);
  }
}

void ReadProgressReporter::Finish() {
  if (thread_ == nullptr) return;
  if (getpid() != pid_) {  // A forked child has no such thread: it can neither join nor detach it.
    (void)thread_.release();
    return;
  }
  {
    MutexLock lock(mutex_);
    finished_ = true;
    changed_.Signal();
  }
  thread_->join();
  thread_.reset();
  int64_t done = 0, total = 0;
  {
    MutexLock lock(mutex_);
    done = ReadBytes();
    total = total_bytes_;
    if (disabled_ || reported_ == 0 || reported_ == done) return;
    reported_ = done;
  }
  report_(done, total).IgnoreError();  // Best effort: reporting never affects the read.
}

}  // namespace ckptd::client
