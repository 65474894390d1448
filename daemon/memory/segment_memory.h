// The memory of one segment: a memfd of a locked size, mapped and populated. Making and freeing it takes long
// (0.5 to 1.8 GB/s), so both happen on the pool's own thread.
#ifndef CKPTD_DAEMON_MEMORY_SEGMENT_MEMORY_H_
#define CKPTD_DAEMON_MEMORY_SEGMENT_MEMORY_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/memory/page_filler.h"
#include "daemon/memory/segment_pool.h"
#include "storage/base/unique_fd.h"

namespace ckptd {

enum class PageKind { kPlain = 0, kTransparent = 1, kHugetlb = 2 };

// Returns "plain", "transparent" or "hugetlb".
const char* PageKindName(PageKind kind);

class SegmentMemory {
 public:
  // Returns zeroed memory with every page present, so that no access to it can fail later. `size` is in
  // bytes, a multiple of 2 MiB. Uses reserved huge pages if `pages` allows them and there are enough, else
  // transparent ones, else plain ones. CANCELLED soon after `stop` is set. RESOURCE_EXHAUSTED, reason
  // POOL_EXHAUSTED, when the machine lacks the memory. `filler` faults the pages in.
  static absl::StatusOr<SegmentMemory> Make(int64_t size, PagePolicy pages, PageFiller& filler,
                                            const std::atomic<bool>& stop);

  // Maps a segment of an earlier daemon without changing its bytes.
  static absl::StatusOr<SegmentMemory> MapInherited(UniqueFd fd, int64_t size);
  // Wraps a segment of an earlier daemon without mapping it, so that its destructor frees it.
  static SegmentMemory Unmapped(UniqueFd fd, int64_t size);

  // For simulations: like Make with plain pages, but no page is present, so an access may fail. Costs next to
  // nothing.
  static absl::StatusOr<SegmentMemory> MakeSparse(int64_t size);

  SegmentMemory(SegmentMemory&& other) noexcept;
  SegmentMemory& operator=(SegmentMemory&& other) noexcept;
  // Unless it is retired, punches the pages out, so that the memory comes back even while a client holds the
  // memfd open and mapped.
  ~SegmentMemory();

  // A client has mapped the memory for good: the bytes must never change again, so the destructor does not
  // punch them out.
  void Retire() { retired_ = true; }

  int fd() const { return fd_.get(); }
  std::byte* data() const { return data_; }
  int64_t size() const { return size_; }
  PageKind pages() const { return pages_; }

 private:
  SegmentMemory() = default;
  static absl::StatusOr<SegmentMemory> Map(int64_t size, PageKind wanted);
  static absl::StatusOr<SegmentMemory> MakeOf(int64_t size, PageKind wanted, PageFiller& filler,
                                              const std::atomic<bool>& stop);
  void Free();

  UniqueFd fd_;
  std::byte* data_ = nullptr;
  int64_t size_ = 0;
  PageKind pages_ = PageKind::kPlain;
  bool retired_ = false;
};

// Message for an operator whose segments got plain pages: what it costs, how the system is set, what to
// change.
std::string PlainPagesAdvice(int64_t pool_bytes);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_MEMORY_SEGMENT_MEMORY_H_
