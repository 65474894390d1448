#include "daemon/memory/populator.h"

#include <pthread.h>

#include <utility>

namespace ckptd {

Populator::Populator(int64_t segment_bytes, PagePolicy pages, DescriptorStore* store,
                     std::function<void(Made)> made)
    : segment_bytes_(segment_bytes), pages_(pages), store_(store), made_(std::move(made)), thread_([this] {
        Run();
      }) {
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

void Populator::Make(SegmentId id) {
  MutexLock lock(mutex_);
  wanted_.push_back(id);
  changed_.Signal();
}

void Populator::Free(SegmentId id, SegmentMemory memory) {
  MutexLock lock(mutex_);
  to_free_.emplace_back(id, std::move(memory));
  changed_.Signal();
}

void Populator::Run() {
  while (true) {
    std::vector<std::pair<SegmentId, SegmentMemory>> freed;
    SegmentId id = 0;
    {
      MutexLock lock(mutex_);
      while (!stop_.load() && wanted_.empty() && to_free_.empty()) changed_.Wait(mutex_);
      if (stop_.load()) return;
      freed.swap(to_free_);
      if (freed.empty()) {
        id = wanted_.front();
        wanted_.pop_front();
      }
    }
    for (const auto& entry : freed) {
      if (store_ != nullptr) store_->Remove(SegmentName(entry.first));
    }
    if (id == 0) continue;
    Made made{id, SegmentMemory::Make(segment_bytes_, pages_, stop_),
              absl::UnavailableError("nobody keeps it")};
    if (made.memory.ok() && store_ != nullptr) made.kept = store_->Put(SegmentName(id), made.memory->fd());
    made_(std::move(made));
  }
}

}  // namespace ckptd
