#include "storage/base/memory/huge_pages.h"

#include <sys/mman.h>

#include <cerrno>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14.
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25  // Linux 6.1.
#endif

namespace ckptd {

// MADV_COLLAPSE refuses 2 MiB without any page, and fills those that are missing with zeros itself: that is
// several times as fast as to populate all of them before.
int MakePagesHuge(std::byte* data, int64_t size) {
  constexpr int64_t kSmallPage = 4 << 10;
  for (int64_t at = 0; at < size; at += kHugePageBytes) {
    if (madvise(data + at, kSmallPage, MADV_POPULATE_WRITE) != 0) return errno;
  }
  return madvise(data, static_cast<size_t>(size), MADV_COLLAPSE) == 0 ? 0 : errno;
}

}  // namespace ckptd
