#include "daemon/memory/populator.h"

#include <pthread.h>

#include <utility>

namespace ckptd {

Populator::Populator(int64_t segment_bytes, PagePolicy pages,
                     std::function<void(absl::StatusOr<SegmentMemory>)> made)
    : segment_bytes_(segment_bytes), pages_(pages), made_(std::move(made)), thread_([this] { Run(); }) {
  pthread_setname_np(thread_.native_handle(), "ckptd-memory");
}

Populator::~Populator() {
  stop_.store(true);
  {
    MutexLock lock(mutex_);
    changed_.Signal();
  }
  thread_.join();
}

void Populator::Make() {
  MutexLock lock(mutex_);
  ++wanted_;
  changed_.Signal();
}

void Populator::Free(SegmentMemory memory) {
  MutexLock lock(mutex_);
  to_free_.push_back(std::move(memory));
  changed_.Signal();
}

void Populator::Run() {
  while (true) {
    std::vector<SegmentMemory> freed;
    bool make = false;
    {
      MutexLock lock(mutex_);
      while (!stop_.load() && wanted_ == 0 && to_free_.empty()) changed_.Wait(mutex_);
      if (stop_.load()) return;
      freed.swap(to_free_);
      if (freed.empty()) {
        --wanted_;
        make = true;
      }
    }
    if (make) made_(SegmentMemory::Make(segment_bytes_, pages_, stop_));
  }
}

}  // namespace ckptd
