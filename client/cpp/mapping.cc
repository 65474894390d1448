#include "client/cpp/mapping.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14.
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

namespace ckptd::client {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

// Address space of `size` bytes that begins at a multiple of a huge page: only there can a mapping use one.
absl::StatusOr<std::byte*> ReserveAligned(size_t size) {
  void* raw = mmap(nullptr, size + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED)
    return ErrnoError(errno, absl::StrCat("reserving ", size, " bytes of address space"));
  const auto begin = reinterpret_cast<uintptr_t>(raw);
  const uintptr_t aligned = (begin + kHugePage - 1) / kHugePage * kHugePage;
  if (aligned > begin) munmap(raw, aligned - begin);
  const uintptr_t end = begin + size + kHugePage;
  if (end > aligned + size) munmap(reinterpret_cast<void*>(aligned + size), end - (aligned + size));
  return reinterpret_cast<std::byte*>(aligned);
}

}  // namespace

absl::StatusOr<std::shared_ptr<Mapping>> Mapping::Map(UniqueFd fd, int64_t size, bool huge, Access access) {
  struct stat stat;
  if (fstat(fd.get(), &stat) != 0) return ErrnoError(errno, "fstat of a segment");
  if (size <= 0 || stat.st_size < size) {
    return absl::InternalError(absl::StrCat("a segment of ", size, " bytes has ", stat.st_size));
  }
  const auto length = static_cast<size_t>(size);
  CKPTD_ASSIGN_OR_RETURN(std::byte * data, ReserveAligned(length));
  const bool writable = access == Access::kWrite;
  if (mmap(data, length, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED | MAP_FIXED, fd.get(), 0) ==
      MAP_FAILED) {
    // No munmap: the kernel may have taken the reservation away before it failed, and another thread's memory
    // may be there now.
    return ErrnoError(errno, absl::StrCat("mapping a segment of ", size, " bytes"));
  }
  std::shared_ptr<Mapping> mapping(new Mapping(data, length));
  if (madvise(data, length, MADV_DONTFORK) != 0) return ErrnoError(errno, "MADV_DONTFORK on a segment");
  // Advice must come before the pages do. Neither of the two is needed for correctness: without them the copy
  // faults.
  if (huge) madvise(data, length, MADV_HUGEPAGE);
  madvise(data, length, writable ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
  return mapping;
}

Mapping::~Mapping() { munmap(data_, size_); }

absl::StatusOr<std::vector<std::span<std::byte>>> Locate(const Segments& segments, int64_t offset,
                                                         int64_t size) {
  std::vector<std::span<std::byte>> spans;
  auto skip = static_cast<size_t>(offset);
  auto left = static_cast<size_t>(size);
  for (const std::shared_ptr<Mapping>& segment : segments) {
    if (left == 0) break;
    const std::span<std::byte> bytes = segment->bytes();
    if (skip >= bytes.size()) {
      skip -= bytes.size();
      continue;
    }
    const size_t take = std::min(left, bytes.size() - skip);
    spans.push_back(bytes.subspan(skip, take));
    skip = 0;
    left -= take;
  }
  if (left > 0) {
    return absl::OutOfRangeError(absl::StrCat("bytes ", offset, " to ", offset + size, " of a part: its ",
                                              segments.size(), " segments end ", left, " bytes before"));
  }
  return spans;
}

}  // namespace ckptd::client
