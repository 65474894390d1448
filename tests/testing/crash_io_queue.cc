#include "tests/testing/crash_io_queue.h"

#include <algorithm>
#include <functional>
#include <random>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "storage/base/errors.h"
#include "storage/base/mutex.h"

namespace ckptd {
namespace {

constexpr Duration kLongestWait = std::chrono::hours(1);

}  // namespace

class CrashIoQueue : public IoQueue {
 public:
  CrashIoQueue(CrashDisk* disk, uint64_t seed) : disk_(disk), random_(seed) {}

  ~CrashIoQueue() override {
    for (Operation& operation : submitted_) operation.perform();
  }

  std::string_view name() const override { return "crash"; }

  void Write(Handle file, std::span<const std::byte> from, int64_t offset, IoDone done) override {
    const absl::StatusOr<uint64_t> transfer = disk_->SubmitWrite(file, from, offset);
    Add(
        transfer.status(), [disk = disk_, id = transfer.value_or(0)] { return disk->EndWrite(id); },
        std::move(done));
  }

  void Read(Handle file, std::span<std::byte> into, int64_t offset, IoDone done) override {
    Add(
        absl::OkStatus(),
        [disk = disk_, file, into, offset]() -> int64_t {
          const absl::StatusOr<size_t> read = disk->ReadAt(file, offset, into);
          return read.ok() ? static_cast<int64_t>(*read) : -ErrnoOf(read.status());
        },
        std::move(done));
  }

  void SyncData(Handle file, IoDone done) override {
    const absl::StatusOr<Inode> inode = disk_->Find(file);
    Add(
        inode.status(), [disk = disk_, inode = inode.value_or(0)] { return disk->SyncFile(inode); },
        std::move(done));
  }

  void Poll(Duration timeout) override {
    WaitForWork(std::min(timeout, kLongestWait));
    std::vector<Operation> operations = std::exchange(submitted_, {});
    for (size_t left = operations.size(); left > 1; --left)
      std::swap(operations[left - 1], operations[random_() % left]);
    for (Operation& operation : operations) {
      const int64_t result = operation.perform();
      --in_flight_;
      operation.done(result);
    }
  }

  void Wake() override {
    MutexLock lock(mutex_);
    woken_ = true;
    changed_.Signal();
  }

  int in_flight() const override { return in_flight_; }

 private:
  struct Operation {
    std::function<int64_t()> perform;
    IoDone done;
  };

  void Add(const absl::Status& refused, std::function<int64_t()> perform, IoDone done) {
    ++in_flight_;
    if (!refused.ok()) perform = [error = ErrnoOf(refused)] { return -error; };
    submitted_.push_back({std::move(perform), std::move(done)});
  }

  void WaitForWork(Duration timeout) {
    const Instant deadline = SystemClock().Now() + timeout;
    MutexLock lock(mutex_);
    while (submitted_.empty() && !woken_) {
      const Duration left = deadline - SystemClock().Now();
      if (left <= Duration::zero()) break;
      changed_.WaitFor(mutex_, left);
    }
    woken_ = false;
  }

  // Used by the owner's thread only.
  CrashDisk* const disk_;
  std::mt19937_64 random_;
  std::vector<Operation> submitted_;
  int in_flight_ = 0;

  Mutex mutex_;
  CondVar changed_;
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
};

IoQueueFactory CrashQueueFactory(CrashDisk* disk, uint64_t seed) {
  return [disk, seed]() -> absl::StatusOr<std::unique_ptr<IoQueue>> {
    return std::make_unique<CrashIoQueue>(disk, seed);
  };
}

}  // namespace ckptd
