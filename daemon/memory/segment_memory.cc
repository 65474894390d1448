#include "daemon/memory/segment_memory.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/magic.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <atomic>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/memory/huge_pages.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

constexpr char kShmemEnabled[] = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";

absl::Status NoMemory(int64_t size, const std::string& why) {
  return MakeError(absl::StatusCode::kResourceExhausted, "POOL_EXHAUSTED",
                   absl::StrCat("no memory for a segment of ", size >> 20, " MiB: ", why));
}

absl::Status NoMemory(int64_t size, std::string_view what, int error_number) {
  return NoMemory(size, std::string(ErrnoError(error_number, what).message()));
}

// Returns a field of /proc/meminfo in bytes; -1 if there is none.
int64_t MemInfo(std::string_view field) {
  std::ifstream file("/proc/meminfo");
  std::string name, unit;
  for (int64_t kib = 0; file >> name >> kib; std::getline(file, unit)) {
    if (name == field) return kib << 10;
  }
  return -1;
}

// Leaves 1/32 of the machine's memory free: populating the last of it would make the OOM killer end trainers.
absl::Status CheckAvailable(int64_t size) {
  const int64_t available = MemInfo("MemAvailable:");
  const int64_t kept = MemInfo("MemTotal:") / 32;
  if (available < 0 || available >= size + kept) return absl::OkStatus();
  return NoMemory(size,
                  absl::StrCat("the machine has ", available >> 20, " MiB available, of which ", kept >> 20,
                               " MiB are kept free for other programs; make pool.bytes smaller"));
}

// Whether all `size` bytes of the mapping that starts at `data` are on transparent huge pages. The kernel
// places mappings downwards, so the newest is among the first lines of smaps.
bool MappedHuge(const std::byte* data, int64_t size) {
  std::ifstream smaps("/proc/self/smaps");
  const uintptr_t wanted = reinterpret_cast<uintptr_t>(data);
  bool ours = false;
  for (std::string line; std::getline(smaps, line);) {
    uintptr_t first = 0, last = 0;
    int64_t kib = 0;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " ", &first, &last) == 2) {
      if (ours) return false;
      ours = first <= wanted && wanted < last;
    } else if (ours && std::sscanf(line.c_str(), "ShmemPmdMapped: %" SCNd64, &kib) == 1) {
      return (kib << 10) >= size;
    }
  }
  return false;
}

// Maps `fd` at an address that is aligned to a huge page.
absl::StatusOr<std::byte*> MapAligned(int fd, int64_t size) {
  void* range =
      mmap(nullptr, size + kHugePageBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) return NoMemory(size, "mmap", errno);
  const uintptr_t start = reinterpret_cast<uintptr_t>(range);
  const uintptr_t aligned = (start + kHugePageBytes - 1) & ~static_cast<uintptr_t>(kHugePageBytes - 1);
  if (aligned > start) munmap(range, aligned - start);
  std::byte* data = reinterpret_cast<std::byte*>(aligned);
  munmap(data + size, start + kHugePageBytes - aligned);
  if (mmap(data, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
    // No munmap: the kernel has removed the reserved range before it failed, and another thread may have
    // mapped memory there since.
    return NoMemory(size, "mmap", errno);
  }
  return data;
}

}  // namespace

const char* PageKindName(PageKind kind) {
  switch (kind) {
    case PageKind::kPlain:
      return "plain";
    case PageKind::kTransparent:
      return "transparent";
    case PageKind::kHugetlb:
      return "hugetlb";
  }
  return "?";
}

SegmentMemory::SegmentMemory(SegmentMemory&& other) noexcept
    : fd_(std::move(other.fd_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(other.size_),
      pages_(other.pages_),
      retired_(other.retired_) {}

SegmentMemory& SegmentMemory::operator=(SegmentMemory&& other) noexcept {
  if (this == &other) return *this;
  Free();
  fd_ = std::move(other.fd_);
  data_ = std::exchange(other.data_, nullptr);
  size_ = other.size_;
  pages_ = other.pages_;
  retired_ = other.retired_;
  return *this;
}

SegmentMemory::~SegmentMemory() { Free(); }

void SegmentMemory::Free() {
  if (data_ != nullptr) munmap(data_, size_);
  data_ = nullptr;
  // Best effort: after a failure the pages last until the last holder closes the memfd.
  if (fd_ && !retired_) (void)fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, size_);
  fd_.reset();
}

absl::StatusOr<SegmentMemory> SegmentMemory::Map(int64_t size, PageKind wanted) {
  const bool hugetlb = wanted == PageKind::kHugetlb;
  SegmentMemory memory;
  memory.size_ = size;
  const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING | (hugetlb ? MFD_HUGETLB | MFD_HUGE_2MB : 0);
  memory.fd_.reset(memfd_create("ckptd-segment", flags));
  if (!memory.fd_) return NoMemory(size, "memfd_create", errno);
  if (fchmod(memory.fd(), 0600) != 0 || ftruncate(memory.fd(), size) != 0)
    return NoMemory(size, "ftruncate", errno);
  if (fcntl(memory.fd(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return NoMemory(size, "F_ADD_SEALS", errno);
  }
  // With hugetlb the kernel fails here if not enough pages are reserved.
  CKPTD_ASSIGN_OR_RETURN(memory.data_, MapAligned(memory.fd(), size));
  // Only advice: a failure costs speed, nothing else.
  madvise(memory.data_, size, MADV_DONTDUMP);
  return memory;
}

absl::StatusOr<SegmentMemory> SegmentMemory::MakeOf(int64_t size, PageKind wanted, PageFiller& filler,
                                                    const std::atomic<bool>& stop) {
  CKPTD_ASSIGN_OR_RETURN(SegmentMemory memory, Map(size, wanted));
  const int error = filler.Fill(memory.data_, size, wanted == PageKind::kTransparent, stop);
  if (error == ECANCELED) return absl::CancelledError("the pool is closing");
  if (error != 0) return NoMemory(size, "populating", error);
  const bool huge = wanted == PageKind::kTransparent && MappedHuge(memory.data_, size);
  memory.pages_ = wanted == PageKind::kHugetlb ? PageKind::kHugetlb
                  : huge                       ? PageKind::kTransparent
                                               : PageKind::kPlain;
  return memory;
}

absl::StatusOr<SegmentMemory> SegmentMemory::MapInherited(UniqueFd fd, int64_t size) {
  struct statfs info {};
  if (fstatfs(fd.get(), &info) != 0) return ErrnoError(errno, "fstatfs of a segment");
  CKPTD_ASSIGN_OR_RETURN(std::byte* const data, MapAligned(fd.get(), size));
  SegmentMemory memory = Unmapped(std::move(fd), size);
  memory.data_ = data;
  madvise(data, size, MADV_DONTDUMP);
  if (info.f_type == HUGETLBFS_MAGIC) memory.pages_ = PageKind::kHugetlb;
  return memory;
}

SegmentMemory SegmentMemory::Unmapped(UniqueFd fd, int64_t size) {
  SegmentMemory memory;
  memory.fd_ = std::move(fd);
  memory.size_ = size;
  return memory;
}

absl::StatusOr<SegmentMemory> SegmentMemory::MakeSparse(int64_t size) { return Map(size, PageKind::kPlain); }

absl::StatusOr<SegmentMemory> SegmentMemory::Make(int64_t size, PagePolicy pages, PageFiller& filler,
                                                  const std::atomic<bool>& stop) {
  if (pages == PagePolicy::kAuto) {
    absl::StatusOr<SegmentMemory> reserved = MakeOf(size, PageKind::kHugetlb, filler, stop);
    if (reserved.ok()) return reserved;
  }
  CKPTD_RETURN_IF_ERROR(CheckAvailable(size));
  return MakeOf(size, pages == PagePolicy::kPlain ? PageKind::kPlain : PageKind::kTransparent, filler, stop);
}

std::string PlainPagesAdvice(int64_t pool_bytes) {
  std::ifstream file(kShmemEnabled);
  std::string setting;
  if (!std::getline(file, setting)) setting = "(no such file)";
  return absl::StrCat(
      "segments are on plain 4 KiB pages, which about halves the speed of direct writes: no huge pages are "
      "reserved, and the kernel made none on request, because it is older than 6.1, or memory is fragmented, "
      "or ",
      kShmemEnabled, " is 'deny' (it is '", setting, "'); as root, `echo advise > ", kShmemEnabled,
      "` or `sysctl vm.nr_hugepages=", pool_bytes / kHugePageBytes, "`, then restart ckptd");
}

}  // namespace ckptd
