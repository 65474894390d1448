#include "client/cpp/memory/mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

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

constexpr long kHugetlbfs = 0x958458f6;  // HUGETLBFS_MAGIC
constexpr size_t kHugePage = size_t{2} << 20;

// Reserves address space of `size` bytes that begins at a multiple of a huge page: only there can a mapping
// use huge pages.
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

absl::Status CheckSize(int fd, int64_t size) {
  struct stat stat;
  if (fstat(fd, &stat) != 0) return ErrnoError(errno, "fstat of a segment");
  if (size > 0 && stat.st_size >= size) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("the daemon announced a segment of ", size, " bytes, but its memory has ", stat.st_size));
}

// The kernel copies a page of a private mapping when it is written. If no reserved huge page were left at
// that moment, the write would be a SIGBUS. Without MAP_NORESERVE the kernel sets the pages aside now, or
// mmap fails.
int PrivateFlags(int fd) {
  struct statfs stat;
  const bool hugetlb = fstatfs(fd, &stat) == 0 && static_cast<long>(stat.f_type) == kHugetlbfs;
  return MAP_PRIVATE | MAP_FIXED | (hugetlb ? 0 : MAP_NORESERVE);
}

}  // namespace

absl::StatusOr<std::shared_ptr<Mapping>> Mapping::Map(UniqueFd fd, int64_t size, bool huge, Access access) {
  CKPTD_RETURN_IF_ERROR(CheckSize(fd.get(), size));
  const auto length = static_cast<size_t>(size);
  CKPTD_ASSIGN_OR_RETURN(std::byte * data, ReserveAligned(length));
  const bool writable = access == Access::kWrite;
  if (mmap(data, length, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED | MAP_FIXED, fd.get(), 0) ==
      MAP_FAILED) {
    // No munmap: the kernel may have released the reservation before it failed, and another thread may have
    // mapped its memory there since.
    return ErrnoError(errno, absl::StrCat("mapping a segment of ", size, " bytes"));
  }
  std::shared_ptr<Mapping> mapping(new Mapping(data, length));
  if (madvise(data, length, MADV_DONTFORK) != 0) return ErrnoError(errno, "MADV_DONTFORK on a segment");
  // The advice must come before the pages. Both are optional: without them the copy faults the pages in.
  if (huge) madvise(data, length, MADV_HUGEPAGE);
  madvise(data, length, writable ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
  return mapping;
}

Mapping::~Mapping() { munmap(data_, size_); }

absl::StatusOr<std::shared_ptr<PrivateMapping>> PrivateMapping::Map(
    const std::vector<SegmentFile>& segments) {
  size_t total = 0;
  for (const SegmentFile& segment : segments) {
    CKPTD_RETURN_IF_ERROR(CheckSize(segment.fd.get(), segment.size));
    total += static_cast<size_t>(segment.size);
  }
  CKPTD_ASSIGN_OR_RETURN(std::byte* const data, ReserveAligned(total));
  std::byte* at = data;
  for (const SegmentFile& segment : segments) {
    const auto size = static_cast<size_t>(segment.size);
    const int flags = PrivateFlags(segment.fd.get());
    if (mmap(at, size, PROT_READ | PROT_WRITE, flags, segment.fd.get(), 0) == MAP_FAILED) {
      const int error = errno;
      // Not where mmap failed; see Mapping::Map.
      munmap(data, static_cast<size_t>(at - data));
      munmap(at + size, total - static_cast<size_t>(at - data) - size);
      return ErrnoError(error, absl::StrCat("mapping a segment of ", size, " bytes privately"));
    }
    madvise(at, size, MADV_POPULATE_READ);  // Optional: without it the first read of each page faults it in.
    at += size;
  }
  return std::shared_ptr<PrivateMapping>(new PrivateMapping(data, total));
}

PrivateMapping::~PrivateMapping() { munmap(data_, size_); }

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
    return absl::OutOfRangeError(absl::StrCat("bytes ", offset, " to ", offset + size,
                                              " of a part lie beyond its ", segments.size(), " segments by ",
                                              left, " bytes"));
  }
  return spans;
}

bool ArePresent(std::span<const std::byte> bytes) {
  constexpr uint64_t kPresent = uint64_t{1} << 63;  // Of an entry in /proc/self/pagemap.
  constexpr size_t kEntries = 1 << 13;              // In one read.
  const UniqueFd table(open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  if (!table) return false;
  const auto page_bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uint64_t>(bytes.data());
  const uint64_t end = (begin + bytes.size() + page_bytes - 1) / page_bytes;
  std::vector<uint64_t> entries(kEntries);
  for (uint64_t page = begin / page_bytes; page < end;) {
    const size_t count = std::min<uint64_t>(kEntries, end - page);
    const ssize_t got = pread(table.get(), entries.data(), count * sizeof(uint64_t),
                              static_cast<off_t>(page * sizeof(uint64_t)));
    if (got < static_cast<ssize_t>(sizeof(uint64_t))) return false;
    const size_t read = static_cast<size_t>(got) / sizeof(uint64_t);
    for (size_t i = 0; i < read; ++i) {
      if ((entries[i] & kPresent) == 0) return false;
    }
    page += read;
  }
  return true;
}

}  // namespace ckptd::client
