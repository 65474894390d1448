// The native library of the Python client: checksums, batches of copies, verified reads and mappings.
//
// It is a plain C interface for ctypes, which releases the GIL around each call. Nothing here keeps state,
// throws or uses Python, and every function may be called from any thread. It needs no C++ runtime library,
// and of glibc only symbols of version 2.17.
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <span>

#include "client/python/native/non_finite.h"
#include "storage/base/checksums/crc32c.h"
#include "storage/base/idle_priority.h"
#include "storage/base/memory/copy_loops.h"
#include "storage/base/memory/fresh_memory.h"
#include "storage/base/memory/streaming_copy.h"
#include "storage/io/verified_read.h"

// These two moved from libpthread to libc in glibc 2.34. Under their older version, every glibc has them.
#if defined(__x86_64__) && defined(__GLIBC__)
__asm__(".symver pthread_create,pthread_create@GLIBC_2.2.5");
__asm__(".symver pthread_join,pthread_join@GLIBC_2.2.5");
#endif

#define CKPTD_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kMaxThreads = 64;
constexpr uint64_t kLeastShare = uint64_t{4} << 20;  // Bytes. For fewer, a thread costs more than it gains.
constexpr uint64_t kHugePage = uint64_t{2} << 20;
constexpr uint64_t kFaultBytes = uint64_t{2}
                                 << 20;  // Faulted in before they are copied: still in the cache then.
constexpr uint64_t kCountBytes = uint64_t{128} << 10;  // Counted before they are copied: likewise.
constexpr uint64_t kUnit = 64;  // Shares of a piece that is counted end on its multiples: no number is split.

// Runs work(context, share) for each share in [0, shares), on as many threads, of which the caller is one.
// Uses fewer threads if some cannot be made.
void ForEachShare(int shares, void (*work)(void*, int), void* context) {
  struct Shared {
    int shares;
    void (*work)(void*, int);
    void* context;
    std::atomic<int> next{0};
  } shared{shares, work, context};
  auto run = [](void* argument) -> void* {
    auto* all = static_cast<Shared*>(argument);
    for (int share = all->next++; share < all->shares; share = all->next++) all->work(all->context, share);
    return nullptr;
  };
  pthread_t threads[kMaxThreads];
  int started = 0;
  while (started + 1 < shares && pthread_create(&threads[started], nullptr, run, &shared) == 0) ++started;
  run(&shared);
  for (int i = 0; i < started; ++i) pthread_join(threads[i], nullptr);
}

// Runs work() on a thread with idle priority, or on the caller's if none can be made. The caller could not
// raise its own priority again.
template <typename Work>
void InBackground(Work work) {
  pthread_t thread;
  auto run = [](void* argument) -> void* {
    ckptd::SetIdlePriority();
    (*static_cast<Work*>(argument))();
    return nullptr;
  };
  if (pthread_create(&thread, nullptr, run, &work) != 0) return work();
  pthread_join(thread, nullptr);
}

int SharesFor(uint64_t bytes, int threads) {
  const auto useful = static_cast<int>(std::min<uint64_t>(bytes / kLeastShare + 1, kMaxThreads));
  return std::clamp(threads, 1, useful);
}

// Pieces of a file image to copy between their own memory and a part, whose memory is consecutive segments.
struct CopyJob {
  const uint64_t* segment_addresses;
  const uint64_t* segment_ends;  // In the part, ascending.
  uint64_t segment_count;
  uint64_t base;            // Where the file begins in the part.
  const uint64_t* offsets;  // Of the pieces, in the file.
  const uint64_t* addresses;
  const uint64_t* lengths;
  uint64_t count;
  const uint8_t* formats;  // Of the numbers in each piece: a FloatFormat. Null: nothing is counted.
  uint64_t* non_finite;    // Counts for each piece the numbers that are not finite.
  bool out;                // From the part to the pieces.
  bool fresh;              // With `out`: the pieces' memory was never touched.
  uint64_t from;           // Copy only the bytes [from, to) of the file.
  uint64_t to;
  uint64_t total;
  int shares;
};

// Copies `size` bytes at `at` in the part, which may lie in several segments.
void CopyPiece(const CopyJob& job, uint64_t at, char* piece, uint64_t size) {
  const uint64_t* const ends = job.segment_ends;
  uint64_t segment = static_cast<uint64_t>(std::upper_bound(ends, ends + job.segment_count, at) - ends);
  while (size > 0) {
    const uint64_t begin = segment == 0 ? 0 : ends[segment - 1];
    const uint64_t n = std::min(size, ends[segment] - at);
    auto* const in_part = reinterpret_cast<char*>(job.segment_addresses[segment] + (at - begin));
    if (job.out) {
      ckptd::StreamingCopy(ckptd::CopyWay::kOutOfSegment, piece, in_part, n);
    } else {
      ckptd::StreamingCopy(ckptd::CopyWay::kIntoSegment, in_part, piece, n);
    }
    at += n;
    piece += n;
    size -= n;
    ++segment;
  }
}

// Copies out of the part into memory that was never touched.
void CopyToFresh(const CopyJob& job, uint64_t at, char* piece, uint64_t size) {
  for (uint64_t done = 0; done < size; done += kFaultBytes) {
    const uint64_t n = std::min(size - done, kFaultBytes);
    ckptd::FaultIn(piece + done, n);
    CopyPiece(job, at + done, piece + done, n);
  }
}

// Copies into the part and counts on the way, so that the bytes come from memory only once.
void CopyAndCount(const CopyJob& job, uint64_t index, uint64_t at, char* piece, uint64_t size) {
  const auto format = static_cast<ckptd::FloatFormat>(job.formats[index]);
  uint64_t found = 0;
  for (uint64_t done = 0; done < size; done += kCountBytes) {
    const uint64_t n = std::min(size - done, kCountBytes);
    found += ckptd::CountNonFinite(format, piece + done, n);
    CopyPiece(job, at + done, piece + done, n);
  }
  if (found > 0) std::atomic_ref(job.non_finite[index]).fetch_add(found);
}

// Where a share that ends after `bytes` of a piece of this length really ends.
uint64_t EndOfShare(const CopyJob& job, uint64_t bytes, uint64_t length) {
  return job.formats == nullptr || bytes == length ? bytes : bytes / kUnit * kUnit;
}

// Copies the share-th part of all bytes, laid end to end.
void CopyShare(void* context, int share) {
  const auto& job = *static_cast<const CopyJob*>(context);
  const uint64_t begin = job.total / job.shares * share;
  const uint64_t end = share + 1 == job.shares ? job.total : job.total / job.shares * (share + 1);
  uint64_t done = 0;
  for (uint64_t i = 0; i < job.count && done < end; ++i) {
    const uint64_t first = std::max(job.offsets[i], job.from),
                   last = std::min(job.offsets[i] + job.lengths[i], job.to);
    if (first >= last) continue;
    const uint64_t length = last - first;
    const uint64_t skip = EndOfShare(job, begin > done ? std::min(begin - done, length) : 0, length);
    const uint64_t stop = EndOfShare(job, std::min(length, end - done), length);
    if (skip < stop) {
      auto* const piece = reinterpret_cast<char*>(job.addresses[i] + (first - job.offsets[i]) + skip);
      if (job.formats != nullptr && job.formats[i] != 0) {
        CopyAndCount(job, i, job.base + first + skip, piece, stop - skip);
      } else {
        (job.fresh ? CopyToFresh : CopyPiece)(job, job.base + first + skip, piece, stop - skip);
      }
    }
    done += last - first;
  }
}

// Reserves addresses for `size` bytes at which huge pages can be used. Null, with errno, if that fails.
char* ReserveAligned(uint64_t size) {
  const uint64_t room = size + kHugePage;
  void* raw = mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<char*>(raw);
  auto* const aligned = begin + (-reinterpret_cast<uintptr_t>(begin) & (kHugePage - 1));
  if (aligned > begin) munmap(begin, static_cast<size_t>(aligned - begin));
  if (begin + room > aligned + size)
    munmap(aligned + size, static_cast<size_t>(begin + room - (aligned + size)));
  return aligned;
}

// A write to a private mapping copies the page. If no huge page is left in the system's reserve at that
// moment, the write is a SIGBUS. So set the pages aside now, or let the mapping fail.
int PrivateFlags(int fd) {
  constexpr long kHugetlbfs = 0x958458f6;  // HUGETLBFS_MAGIC
  struct statfs stat;
  const bool hugetlb = fstatfs(fd, &stat) == 0 && static_cast<long>(stat.f_type) == kHugetlbfs;
  return MAP_PRIVATE | MAP_FIXED | (hugetlb ? 0 : MAP_NORESERVE);
}

// Counts only loops that work on this processor.
const ckptd::CopyLoop* LoopHere(int index) {
  for (const ckptd::CopyLoop& loop : ckptd::CopyLoops()) {
    if (loop.works_here() && index-- == 0) return &loop;
  }
  return nullptr;
}

}  // namespace

// The version of this interface. The package refuses a library with another version.
CKPTD_EXPORT int ckptd_native_version() { return 11; }

// Returns the CRC32C of some bytes; `crc` is that of the bytes before them, 0 at the start.
CKPTD_EXPORT uint32_t ckptd_crc32c(const void* data, uint64_t size, uint32_t crc) {
  return ckptd::Crc32c(std::span(static_cast<const std::byte*>(data), size), crc);
}

// Copies lengths[i] bytes from addresses[i] to offsets[i] of a file, or, with `out`, the other way, for i in
// [0, count); of the file, only the bytes [from, to). Up to `threads` threads copy an equal share of the
// bytes each. The file begins at `base` of a part, whose memory is consecutive segments: the i-th ends at
// segment_ends[i] in the part. `fresh`: the memory that is written was never touched, so it is faulted in on
// the way. In the background it runs with idle priority. `formats` and `non_finite` are null, or say for each
// piece that is copied into the part which numbers it has (a FloatFormat), and count those that are not
// finite; then [from, to) is the whole file. Returns 0, or ERANGE, with nothing copied, if the part is too
// small.
CKPTD_EXPORT int ckptd_copy(const uint64_t* segment_addresses, const uint64_t* segment_ends,
                            uint64_t segment_count, uint64_t base, const uint64_t* offsets,
                            const uint64_t* addresses, const uint64_t* lengths, uint64_t count, uint64_t from,
                            uint64_t to, int threads, int out, int fresh, int background,
                            const uint8_t* formats, uint64_t* non_finite) {
  CopyJob job{segment_addresses, segment_ends, segment_count, base,       offsets, addresses, lengths, count,
              formats,           non_finite,   out != 0,      fresh != 0, from,    to,        0,       1};
  const uint64_t room = segment_count == 0 ? 0 : segment_ends[segment_count - 1];
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t first = std::max(offsets[i], from), last = std::min(offsets[i] + lengths[i], to);
    if (first >= last) continue;
    // Modulo 2^64: `base` is negative if the target is only a window of the file.
    if (base + first > room || room - (base + first) < last - first) return ERANGE;
    job.total += last - first;
  }
  job.shares = SharesFor(job.total, threads);
  auto copy = [&job] { ForEachShare(job.shares, CopyShare, &job); };
  background != 0 ? InBackground(copy) : copy();
  return 0;
}

// As ckptd_copy, but queues copies between the part and a GPU's memory on a stream of the GPU's runtime, in the
// order of the pieces, and none that reaches from one segment into the next. `copy` is cudaMemcpyAsync, or a function
// of another runtime with its arguments: this library is linked with none. Returns 0, ERANGE as a negative number, or
// the first error that `copy` returns; the copies after that one are not queued.
CKPTD_EXPORT int ckptd_copy_async(int (*copy)(void* target, const void* source, size_t size, int kind,
                                              void* stream),
                                  void* stream, const uint64_t* segment_addresses,
                                  const uint64_t* segment_ends, uint64_t segment_count, uint64_t base,
                                  const uint64_t* offsets, const uint64_t* addresses, const uint64_t* lengths,
                                  uint64_t count, uint64_t from, uint64_t to, int out) {
  constexpr int kDefault = 4;  // cudaMemcpyDefault: the addresses tell whose memory it is.
  const uint64_t room = segment_count == 0 ? 0 : segment_ends[segment_count - 1];
  for (uint64_t i = 0; i < count; ++i) {
    uint64_t at = std::max(offsets[i], from);
    const uint64_t end = std::min(offsets[i] + lengths[i], to);
    if (at >= end) continue;
    if (base + end > room) return -ERANGE;
    const uint64_t* segment = std::upper_bound(segment_ends, segment_ends + segment_count, base + at);
    for (; at < end; ++segment) {
      const uint64_t begin = segment == segment_ends ? 0 : segment[-1];
      const uint64_t size = std::min(end, *segment - base) - at;
      auto* const host =
          reinterpret_cast<void*>(segment_addresses[segment - segment_ends] + (base + at - begin));
      auto* const device = reinterpret_cast<void*>(addresses[i] + (at - offsets[i]));
      const int error =
          out != 0 ? copy(device, host, size, kDefault, stream) : copy(host, device, size, kDefault, stream);
      if (error != 0) return error;
      at += size;
    }
  }
  return 0;
}

// Returns how many numbers of this FloatFormat are not finite, and in *infinite how many of these are
// infinities.
CKPTD_EXPORT uint64_t ckptd_count_non_finite(int format, const void* data, uint64_t bytes,
                                             uint64_t* infinite) {
  const auto numbers = static_cast<ckptd::FloatFormat>(format);
  *infinite = ckptd::CountInfinite(numbers, data, bytes);
  return ckptd::CountNonFinite(numbers, data, bytes);
}

// Reads lengths[i] bytes from offsets[i] of a file to addresses[i], for i in [0, count), with up to `threads`
// threads, and verifies every chunk that they touch against `expected`, the CRC32C of each chunk of the file.
// The pieces are ordered by offset, do not overlap, and do not reach beyond `file_size`.
//
// Returns 0, or an errno: that of the failed read, ENODATA if the file ended early, EBADMSG for a wrong CRC.
// Then *bad is the chunk and *found its CRC, and the bytes must not be used. *done grows by the bytes that
// are read. Soon after *stop becomes nonzero the call ends with ECANCELED. Both may be null. `fresh` is as
// for ckptd_copy. In the background it runs with idle priority.
CKPTD_EXPORT int ckptd_read_verified(int fd, uint64_t file_size, uint64_t chunk_bytes,
                                     const uint32_t* expected, const uint64_t* offsets,
                                     const uint64_t* addresses, const uint64_t* lengths, uint64_t count,
                                     int threads, int64_t* bad, uint32_t* found, uint64_t* done,
                                     const int32_t* stop, int fresh, int background) {
  const ckptd::VerifiedRead read{fd,      file_size, chunk_bytes, expected, offsets, addresses,
                                 lengths, count,     threads,     done,     stop,    fresh != 0};
  ckptd::ReadFault fault;
  auto do_read = [&] { fault = ckptd::ReadVerifiedChunks(read, ForEachShare); };
  background != 0 ? InBackground(do_read) : do_read();
  *bad = fault.chunk;
  *found = fault.found;
  return fault.error;
}

// Announces that count buffers, ordered by address and never touched so far, are about to be filled: the
// kernel backs them by huge pages where it can.
CKPTD_EXPORT void ckptd_advise_huge_pages(const uint64_t* addresses, const uint64_t* lengths,
                                          uint64_t count) {
  ckptd::AdviseHugePages(addresses, lengths, count);
}

// Maps a segment, shared, for reading and, with `writable`, for writing, at an address where huge pages can
// be used. Fills the page table in: faulting page by page during a copy would take four times as long as the
// copy. A forked child does not inherit the mapping. Returns 0 or an errno.
CKPTD_EXPORT int ckptd_map(int fd, uint64_t size, int writable, void** address) {
  char* const aligned = ReserveAligned(size);
  if (aligned == nullptr) return errno;
  const int access = PROT_READ | (writable != 0 ? PROT_WRITE : 0);
  if (mmap(aligned, size, access, MAP_SHARED | MAP_FIXED | MAP_POPULATE, fd, 0) == MAP_FAILED ||
      madvise(aligned, size, MADV_DONTFORK) != 0) {
    const int error = errno;
    munmap(aligned, size);
    return error;
  }
  *address = aligned;
  return 0;
}

// Maps segments one after another, privately: a write copies the page, and the segments do not change. Their
// sizes are multiples of 2 MiB. A forked child inherits the mapping. Returns 0 or an errno.
CKPTD_EXPORT int ckptd_map_private(const int* fds, const uint64_t* sizes, uint64_t count, void** address) {
  uint64_t total = 0;
  for (uint64_t i = 0; i < count; ++i) total += sizes[i];
  char* const aligned = ReserveAligned(total);
  if (aligned == nullptr) return errno;
  char* at = aligned;
  for (uint64_t i = 0; i < count; at += sizes[i++]) {
    if (mmap(at, sizes[i], PROT_READ | PROT_WRITE, PrivateFlags(fds[i]), fds[i], 0) == MAP_FAILED) {
      const int error = errno;
      munmap(aligned, total);
      return error;
    }
    // Only advice: without it, each page is faulted in when it is first read.
    madvise(at, sizes[i], MADV_POPULATE_READ);
  }
  *address = aligned;
  return 0;
}

// The index-th loop that copies memory on this processor, for measurements. Null if there are not so many.
CKPTD_EXPORT const char* ckptd_copy_loop_name(int index) {
  const ckptd::CopyLoop* const loop = LoopHere(index);
  return loop == nullptr ? nullptr : loop->name;
}

// Copies by the index-th loop.
CKPTD_EXPORT void ckptd_copy_by_loop(int index, void* to, const void* from, uint64_t size) {
  LoopHere(index)->copy(static_cast<char*>(to), static_cast<const char*>(from), size);
}

// The loop that this process has chosen for copies into a part, or, with `out`, out of one. Null before it
// has copied enough to know.
CKPTD_EXPORT const char* ckptd_fastest_copy_loop(int out) {
  const ckptd::CopyLoop* const loop =
      ckptd::FastestCopyLoop(out != 0 ? ckptd::CopyWay::kOutOfSegment : ckptd::CopyWay::kIntoSegment);
  return loop == nullptr ? nullptr : loop->name;
}

CKPTD_EXPORT int ckptd_unmap(void* address, uint64_t size) { return munmap(address, size) == 0 ? 0 : errno; }
