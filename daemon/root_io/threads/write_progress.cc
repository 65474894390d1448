#include "daemon/root_io/threads/write_progress.h"

#include <utility>

namespace ckptd {

WriteProgress::Entry WriteProgress::Begin(std::shared_ptr<const std::atomic<int64_t>> bytes) {
  MutexLock lock(mutex_);
  if (writing_.empty()) progress_ = clock_->Now();
  const int64_t seen = bytes->load();
  return writing_.insert(writing_.end(), Writing{std::move(bytes), seen});
}

void WriteProgress::End(Entry entry) {
  MutexLock lock(mutex_);
  writing_.erase(entry);
  progress_ = clock_->Now();
}

std::optional<Instant> WriteProgress::StuckSince() {
  MutexLock lock(mutex_);
  for (Writing& writing : writing_) {
    const int64_t bytes = writing.bytes->load(std::memory_order_relaxed);
    if (std::exchange(writing.seen, bytes) != bytes) progress_ = clock_->Now();
  }
  if (writing_.empty()) return std::nullopt;
  return progress_;
}

}  // namespace ckptd
