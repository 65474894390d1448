#include "daemon/memory/page_filler.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <thread>
#include <vector>

#include "storage/base/memory/huge_pages.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14.
#endif

namespace ckptd {
namespace {

constexpr int64_t kMaxThreads = 4;
constexpr int64_t kStep = 64 << 20;   // Bytes between two checks of `stop`.
constexpr int64_t kTrial = 16 << 20;  // Bytes that are enough to time small pages.

// Shares the range among several threads: a job's first save may wait for it. Returns 0 or the errno of one.
int InParallel(std::byte* data, int64_t size, const std::function<int(std::byte*, int64_t)>& call) {
  const int64_t threads = std::clamp<int64_t>(std::thread::hardware_concurrency(), 1, kMaxThreads);
  const int64_t share = (size / threads + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  std::atomic<int> error{0};
  const auto run = [&](int64_t begin) {
    if (const int failed = call(data + begin, std::min(share, size - begin)); failed != 0) error = failed;
  };
  std::vector<std::jthread> others;
  for (int64_t begin = share; begin < size; begin += share) {
    try {
      others.emplace_back(run, begin);
    } catch (const std::system_error&) {  // The system allows no more threads.
      run(begin);
    }
  }
  run(0);
  others.clear();
  return error;
}

int Advise(std::byte* data, int64_t size, int advice) { return madvise(data, size, advice) == 0 ? 0 : errno; }

int MakeHugeIfSupported(std::byte* data, int64_t size) {
  const int error = MakePagesHuge(data, size);
  return error == EINVAL ? 0 : error;
}

}  // namespace

PageCalls KernelPageCalls() {
  return {.populate = [](std::byte* data, int64_t size) { return Advise(data, size, MADV_POPULATE_WRITE); },
          .make_huge = MakeHugeIfSupported,
          .advise = [](std::byte* data, int64_t size,
                       bool huge) { (void)Advise(data, size, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE); },
          .now_ns =
              [] {
                const auto now = std::chrono::steady_clock::now().time_since_epoch();
                return std::chrono::nanoseconds(now).count();
              }};
}

int PageFiller::Fill(std::byte* data, int64_t size, bool huge, const std::atomic<bool>& stop) {
  if (huge && !small_) {
    if (const int error = TimeSmallPages(data, std::min(size, kTrial)); error != 0) return error;
  }
  calls_.advise(data, size, huge);
  for (int64_t done = 0; done < size; done += kStep) {
    if (stop.load(std::memory_order_relaxed)) return ECANCELED;
    const int64_t step = std::min(kStep, size - done);
    if (huge && !MakeHuge(data + done, step)) {
      huge = false;
      calls_.advise(data + done, size - done, false);
    }
    // Huge pages may not have covered all of it.
    if (const int error = InParallel(data + done, step, calls_.populate); error != 0) return error;
  }
  return 0;
}

int PageFiller::TimeSmallPages(std::byte* data, int64_t size) {
  calls_.advise(data, size, false);
  const int64_t begin = calls_.now_ns();
  if (const int error = InParallel(data, size, calls_.populate); error != 0) return error;
  small_ = static_cast<double>(calls_.now_ns() - begin) / static_cast<double>(size);
  return 0;
}

// Returns whether huge pages are worth their time, so that the next step should use them, too.
bool PageFiller::MakeHuge(std::byte* data, int64_t size) {
  const int64_t begin = calls_.now_ns();
  if (InParallel(data, size, calls_.make_huge) != 0) return false;
  const double cost = static_cast<double>(calls_.now_ns() - begin) / static_cast<double>(size);
  return cost <= kMostTimesSmall * *small_;
}

}  // namespace ckptd
