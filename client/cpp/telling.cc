#include "client/cpp/telling.h"

#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <utility>

namespace ckptd::client {

Telling::Telling(Tell tell, Duration every)
    : tell_(std::move(tell)), every_(every), pid_(getpid()), next_(SystemClock().Now() + every) {}

Telling::~Telling() { Finish(); }

uint64_t* Telling::Begin(int64_t size) {
  MutexLock lock(mutex_);
  __atomic_store_n(&done_, 0, __ATOMIC_RELAXED);
  size_ = size;
  total_ += size;
  reading_ = true;
  if (idle_) changed_.Signal();
  if (thread_ != nullptr || over_ || gone_) return &done_;
  try {
    thread_ = std::make_unique<std::thread>([this] { Run(); });
  } catch (const std::system_error&) {
    gone_ = true;  // No more threads may be made here: reading goes on untold.
  }
  return &done_;
}

void Telling::End(bool whole) {
  MutexLock lock(mutex_);
  before_ = whole ? before_ + size_ : Done();
  size_ = 0;
  reading_ = false;
}

int64_t Telling::Done() const {
  const auto done = static_cast<int64_t>(__atomic_load_n(&done_, __ATOMIC_RELAXED));
  return before_ + std::min(done, size_);
}

void Telling::Run() {
  for (;;) {
    int64_t done = 0, total = 0;
    {
      MutexLock lock(mutex_);
      for (;;) {
        if (over_ || gone_) return;
        const Instant now = SystemClock().Now();
        if (now < next_) {
          changed_.WaitFor(mutex_, next_ - now);
        } else if (!reading_) {
          idle_ = true;
          changed_.Wait(mutex_);
          idle_ = false;
        } else {
          next_ = now + every_;
          if (Done() != told_) break;
        }
      }
      done = told_ = Done();
      total = total_;
    }
    const absl::Status told = tell_(done, total);
    MutexLock lock(mutex_);
    gone_ = !told.ok() && !absl::IsDeadlineExceeded(told);
  }
}

void Telling::Finish() {
  if (thread_ == nullptr) return;
  if (getpid() != pid_) {  // A forked child has no such thread to wait for or to let go.
    (void)thread_.release();
    return;
  }
  {
    MutexLock lock(mutex_);
    over_ = true;
    changed_.Signal();
  }
  thread_->join();
  thread_.reset();
  int64_t done = 0, total = 0;
  {
    MutexLock lock(mutex_);
    done = Done();
    total = total_;
    if (gone_ || told_ == 0 || told_ == done) return;
    told_ = done;
  }
  tell_(done, total).IgnoreError();  // How it ends is the same to who read.
}

}  // namespace ckptd::client
