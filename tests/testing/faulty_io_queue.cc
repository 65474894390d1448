#include "tests/testing/faulty_io_queue.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

namespace ckptd {

void IoFaults::FailWrite(int nth, int error) { AnswerWrite(nth, -error); }

void IoFaults::AnswerWrite(int nth, int64_t result) {
  MutexLock lock(mutex_);
  write_answers_[nth] = result;
}

void IoFaults::FailSync(int nth, int error) {
  MutexLock lock(mutex_);
  sync_errors_[nth] = error;
}

void IoFaults::ShortenWrites(size_t bytes) {
  MutexLock lock(mutex_);
  longest_write_ = bytes;
}

void IoFaults::Hold() {
  MutexLock lock(mutex_);
  holding_ = true;
}

void IoFaults::Release() {
  MutexLock lock(mutex_);
  holding_ = false;
  if (wake_) wake_();
}

int IoFaults::writes() const {
  MutexLock lock(mutex_);
  return writes_;
}

int IoFaults::syncs() const {
  MutexLock lock(mutex_);
  return syncs_;
}

bool IoFaults::WaitUntilHeld(int n, Duration timeout) {
  const Instant deadline = SystemClock().Now() + timeout;
  MutexLock lock(mutex_);
  while (held_ < n) {
    const Duration left = deadline - SystemClock().Now();
    if (left <= Duration::zero()) return false;
    held_changed_.WaitFor(mutex_, left);
  }
  return true;
}

int IoFaults::writes_in_flight() const {
  MutexLock lock(mutex_);
  return writes_in_flight_;
}

int IoFaults::most_in_flight() const {
  MutexLock lock(mutex_);
  return most_in_flight_;
}

class FaultyIoQueue : public IoQueue {
 public:
  FaultyIoQueue(std::unique_ptr<IoQueue> base, IoFaults* faults) : base_(std::move(base)), faults_(faults) {
    MutexLock lock(faults_->mutex_);
    faults_->wake_ = [this] { base_->Wake(); };
  }
  ~FaultyIoQueue() override {
    MutexLock lock(faults_->mutex_);
    faults_->wake_ = nullptr;
  }

  std::string_view name() const override { return base_->name(); }

  void Write(Handle file, std::span<const std::byte> from, int64_t offset, IoDone done) override {
    std::optional<int64_t> answer;
    {
      MutexLock lock(faults_->mutex_);
      const auto found = faults_->write_answers_.find(++faults_->writes_);
      if (found != faults_->write_answers_.end()) answer = found->second;
      const size_t longest = faults_->longest_write_;
      if (longest > 0) from = from.first(std::min(from.size(), longest));
      faults_->most_in_flight_ = std::max(faults_->most_in_flight_, ++faults_->writes_in_flight_);
    }
    IoDone counted = [this, done = std::move(done)](int64_t result) mutable {
      {
        MutexLock lock(faults_->mutex_);
        --faults_->writes_in_flight_;
      }
      done(result);
    };
    if (answer.has_value()) return Complete(std::move(counted), *answer);
    base_->Write(file, from, offset, Held(std::move(counted)));
  }

  void Read(Handle file, std::span<std::byte> into, int64_t offset, IoDone done) override {
    base_->Read(file, into, offset, Held(std::move(done)));
  }

  void SyncData(Handle file, IoDone done) override {
    int error = 0;
    {
      MutexLock lock(faults_->mutex_);
      ++faults_->syncs_;
      for (const int nth : {0, faults_->syncs_}) {
        const auto found = faults_->sync_errors_.find(nth);
        if (found != faults_->sync_errors_.end()) error = found->second;
      }
    }
    if (error != 0) return Complete(std::move(done), -error);
    base_->SyncData(file, Held(std::move(done)));
  }

  void Poll(Duration timeout) override {
    const bool ready = !completed_.empty() && !holding();
    base_->Poll(ready ? Duration::zero() : timeout);
    if (holding()) return;
    std::deque<Completed> completed = std::exchange(completed_, {});
    {
      MutexLock lock(faults_->mutex_);
      faults_->held_ = 0;
    }
    for (Completed& one : completed) one.done(one.result);
  }

  void Wake() override { base_->Wake(); }
  int in_flight() const override { return base_->in_flight() + static_cast<int>(completed_.size()); }

 private:
  struct Completed {
    IoDone done;
    int64_t result;
  };

  bool holding() const {
    MutexLock lock(faults_->mutex_);
    return faults_->holding_;
  }

  // The completion runs at the end of a Poll, like any other.
  void Complete(IoDone done, int64_t result) {
    completed_.push_back({std::move(done), result});
    MutexLock lock(faults_->mutex_);
    faults_->held_ = static_cast<int>(completed_.size());
    faults_->held_changed_.SignalAll();
  }

  IoDone Held(IoDone done) {
    return [this, done = std::move(done)](int64_t result) mutable { Complete(std::move(done), result); };
  }

  const std::unique_ptr<IoQueue> base_;
  IoFaults* const faults_;
  std::deque<Completed> completed_;  // Completions not yet run. Used by the owner's thread only.
};

IoQueueFactory FaultyQueueFactory(IoQueueFactory base, IoFaults* faults) {
  return [base = std::move(base), faults]() -> absl::StatusOr<std::unique_ptr<IoQueue>> {
    absl::StatusOr<std::unique_ptr<IoQueue>> made = base();
    if (!made.ok()) return made;
    return std::make_unique<FaultyIoQueue>(*std::move(made), faults);
  };
}

}  // namespace ckptd
