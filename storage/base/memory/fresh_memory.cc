#include "storage/base/memory/fresh_memory.h"

#include <sys/mman.h>

#include <algorithm>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14.
#endif

namespace ckptd {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kHugePage = uint64_t{2} << 20;
constexpr uint64_t kMaxGap = uint64_t{64}
                             << 10;  // What an allocator leaves between two large buffers, at most.

void AdvisePages(uint64_t begin, uint64_t end) {
  begin = begin / kPage * kPage;
  end = (end + kPage - 1) / kPage * kPage;
  if (end - begin >= kHugePage) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

}  // namespace

void AdviseHugePages(const uint64_t* addresses, const uint64_t* lengths, uint64_t count) {
  for (uint64_t i = 0; i < count;) {
    const uint64_t begin = addresses[i];
    uint64_t end = begin + lengths[i];
    for (++i; i < count && addresses[i] <= end + kMaxGap; ++i) end = std::max(end, addresses[i] + lengths[i]);
    AdvisePages(begin, end);
  }
}

void FaultIn(char* begin, size_t size) {
  const uint64_t at = reinterpret_cast<uint64_t>(begin), end = at + size, first = at / kPage * kPage;
  madvise(reinterpret_cast<void*>(first), (end - first + kPage - 1) / kPage * kPage, MADV_POPULATE_WRITE);
}

}  // namespace ckptd
