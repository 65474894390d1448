// Faults in the memory of segments: on huge pages, as long as these do not cost much more time than small
// ones.
#ifndef CKPTD_DAEMON_MEMORY_PAGE_FILLER_H_
#define CKPTD_DAEMON_MEMORY_PAGE_FILLER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

namespace ckptd {

// The kernel as PageFiller needs it. `data` is aligned to a huge page and `size` is a multiple of one. The
// functions with a result return 0 or an errno. `populate` and `make_huge` are called by several threads at
// once, each with a range of its own.
struct PageCalls {
  // Makes every page present; pages that are present stay as they are (MADV_POPULATE_WRITE).
  std::function<int(std::byte* data, int64_t size)> populate;
  // MakePagesHuge. Returns 0 also where this kernel has no such call: the pages are huge then if
  // shmem_enabled and `advise` let page faults make them so.
  std::function<int(std::byte* data, int64_t size)> make_huge;
  // Lets page faults use huge pages in the range, or not (MADV_HUGEPAGE, MADV_NOHUGEPAGE). Best effort.
  std::function<void(std::byte* data, int64_t size, bool huge)> advise;
  std::function<int64_t()> now_ns;
};

PageCalls KernelPageCalls();

class PageFiller {
 public:
  // Huge pages may take so many times as long as small ones. They save that time again: every process that
  // maps the segment has 512 times fewer pages to map. Where memory is fragmented the kernel has to move
  // other pages first, which takes longer than anybody gains.
  static constexpr double kMostTimesSmall = 4;

  explicit PageFiller(PageCalls calls = KernelPageCalls()) : calls_(std::move(calls)) {}

  // Makes every page of the range present, by several threads. `huge`: on huge pages where that is possible
  // and fast enough; each call tries anew. Returns 0, an errno, or ECANCELED soon after `stop` is set. One
  // call at a time.
  int Fill(std::byte* data, int64_t size, bool huge, const std::atomic<bool>& stop);

 private:
  int TimeSmallPages(std::byte* data, int64_t size);
  bool MakeHuge(std::byte* data, int64_t size);

  const PageCalls calls_;
  std::optional<double> small_;  // Nanoseconds for a byte on small pages; measured once.
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_MEMORY_PAGE_FILLER_H_
