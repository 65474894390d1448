#include "daemon/memory/populator.h"

#include <pthread.h>

#include <atomic>
#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "daemon/memory/page_filler.h"
#include "storage/base/mutex.h"

namespace ckptd {
namespace {

class ThreadPopulator : public Populator {
 public:
  ThreadPopulator(int64_t segment_bytes, PagePolicy pages, DescriptorStore* store, Made made)
      : segment_bytes_(segment_bytes), pages_(pages), store_(store), made_(std::move(made)), thread_([this] {
          Run();
        }) {
    pthread_setname_np(thread_.native_handle(), "ckptd-memory");
  }

  ~ThreadPopulator() override {
    stop_.store(true);
    {
      MutexLock lock(mutex_);
      changed_.Signal();
    }
    thread_.join();
  }

  void Make(SegmentId id) override {
    MutexLock lock(mutex_);
    wanted_.push_back(id);
    changed_.Signal();
  }

  void Free(SegmentId id, SegmentMemory memory) override {
    MutexLock lock(mutex_);
    to_free_.emplace_back(id, std::move(memory));
    changed_.Signal();
  }

  void Forget(SegmentId id, std::function<void(absl::Status)> forgotten) override {
    MutexLock lock(mutex_);
    to_forget_.emplace_back(id, std::move(forgotten));
    changed_.Signal();
  }

 private:
  void Run() {
    while (true) {
      std::vector<std::pair<SegmentId, SegmentMemory>> freed;
      std::vector<std::pair<SegmentId, std::function<void(absl::Status)>>> forgotten;
      SegmentId id = 0;
      {
        MutexLock lock(mutex_);
        while (!stop_.load() && wanted_.empty() && to_free_.empty() && to_forget_.empty())
          changed_.Wait(mutex_);
        if (stop_.load()) return;
        freed.swap(to_free_);
        forgotten.swap(to_forget_);
        if (freed.empty() && forgotten.empty()) {
          id = wanted_.front();
          wanted_.pop_front();
        }
      }
      for (const auto& [segment, memory] : freed) {
        // Best effort: if the store keeps it, the next daemon finds an unused segment and frees it.
        if (store_ != nullptr) (void)store_->Remove(SegmentName(segment));
      }
      for (const auto& [segment, callback] : forgotten)
        callback(store_ == nullptr ? absl::OkStatus() : store_->Remove(SegmentName(segment)));
      if (id == 0) continue;
      MadeSegment made{id, SegmentMemory::Make(segment_bytes_, pages_, filler_, stop_),
                       absl::UnavailableError("there is no descriptor store")};
      if (made.memory.ok() && store_ != nullptr) made.kept = store_->Put(SegmentName(id), made.memory->fd());
      made_(std::move(made));
    }
  }

  const int64_t segment_bytes_;
  const PagePolicy pages_;
  DescriptorStore* const store_;
  const Made made_;
  std::atomic<bool> stop_{false};
  PageFiller filler_;  // Of thread_.
  Mutex mutex_;
  CondVar changed_;
  std::deque<SegmentId> wanted_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::pair<SegmentId, SegmentMemory>> to_free_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::pair<SegmentId, std::function<void(absl::Status)>>> to_forget_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;  // Declared last: it uses all members above.
};

}  // namespace

std::unique_ptr<Populator> StartPopulator(int64_t segment_bytes, PagePolicy pages, DescriptorStore* store,
                                          Populator::Made made) {
  return std::make_unique<ThreadPopulator>(segment_bytes, pages, store, std::move(made));
}

}  // namespace ckptd
