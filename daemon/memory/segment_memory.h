// The memory of one segment: a memfd, size-locked, mapped and populated. Making and freeing it takes long
// (0.5 to 1.8 GB/s), so both happen on the pool's own thread.
#ifndef CKPTD_DAEMON_MEMORY_SEGMENT_MEMORY_H_
#define CKPTD_DAEMON_MEMORY_SEGMENT_MEMORY_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/memory/segment_pool.h"
#include "storage/base/unique_fd.h"

namespace ckptd {

enum class PageKind { kPlain = 0, kTransparent = 1, kHugetlb = 2 };

// "plain", "transparent", "hugetlb".
const char* PageKindName(PageKind kind);

class SegmentMemory {
 public:
  // Zeroed, every page present, so that no touch of it can fail later. `size` is a multiple of 2 MiB. Takes
  // reserved huge pages where `pages` allows it and there are enough, else transparent ones, else plain ones.
  // Gives up with CANCELLED soon after `stop` is set. RESOURCE_EXHAUSTED, reason POOL_EXHAUSTED, when the
  // machine has not got the memory.
  static absl::StatusOr<SegmentMemory> Make(int64_t size, PagePolicy pages, const std::atomic<bool>& stop);

  // An earlier daemon's, mapped as it is.
  static absl::StatusOr<SegmentMemory> Adopt(UniqueFd fd, int64_t size);
  // An earlier daemon's, not mapped: to be freed.
  static SegmentMemory Discarded(UniqueFd fd, int64_t size);

  // The same descriptor and mapping, plain, with no page present: a touch of it may fail. Costs next to
  // nothing, so a simulation can have thousands.
  static absl::StatusOr<SegmentMemory> MakeSparse(int64_t size);

  SegmentMemory(SegmentMemory&& other) noexcept;
  SegmentMemory& operator=(SegmentMemory&& other) noexcept;
  // Gives the pages back although a client may still hold the memfd open and mapped: they are punched out,
  // unless it is retired.
  ~SegmentMemory();

  // Somebody maps it for as long as they like: its bytes never change again, not even by going.
  void Retire() { retired_ = true; }

  int fd() const { return fd_.get(); }
  std::byte* data() const { return data_; }
  int64_t size() const { return size_; }
  PageKind pages() const { return pages_; }

 private:
  SegmentMemory() = default;
  static absl::StatusOr<SegmentMemory> Map(int64_t size, PageKind wanted);
  static absl::StatusOr<SegmentMemory> MakeOf(int64_t size, PageKind wanted, const std::atomic<bool>& stop);
  void Free();

  UniqueFd fd_;
  std::byte* data_ = nullptr;
  int64_t size_ = 0;
  PageKind pages_ = PageKind::kPlain;
  bool retired_ = false;
};

// What to tell an operator whose segments got plain pages: what it costs, what the system is set to, how to
// change it.
std::string PlainPagesAdvice(int64_t pool_bytes);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_MEMORY_SEGMENT_MEMORY_H_
