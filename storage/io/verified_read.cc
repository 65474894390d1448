#include "storage/io/verified_read.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <span>

#include "storage/base/checksums/crc32c.h"
#include "storage/base/memory/fresh_memory.h"
#include "storage/base/memory/streaming_copy.h"

namespace ckptd {
namespace {

constexpr uint64_t kBlock = 4096;
constexpr uint64_t kHugePage = uint64_t{2} << 20;
// The size of reads through the page cache: still in the processor's cache when the CRC is computed.
constexpr uint64_t kCachedPiece = uint64_t{512} << 10;
constexpr uint64_t kAhead = uint64_t{32} << 20;  // Bytes that the disk fetches ahead.
constexpr int kMaxVectors = 64;
// Direct reads: what keeps a disk busy. Each thread has one read in flight.
constexpr uint64_t kDirectPiece = uint64_t{512} << 10;
constexpr int kDirectDepth = 32;
constexpr uint64_t kLeastDirect = 4;                 // Chunks. For fewer, the kernel's read-ahead is as good.
constexpr uint64_t kLeastShare = uint64_t{4} << 20;  // Less work than starting a thread.
constexpr int kNoWait = 8;                           // RWF_NOWAIT.

struct Job {
  const VerifiedRead& read;
  int direct = -1;                // The same file opened with O_DIRECT; -1: not possible.
  char* buffers = nullptr;        // One of kDirectPiece for each share.
  uint64_t end = 0;               // The number of the chunk after the last.
  std::atomic<uint64_t> next{0};  // The next chunk to read.
  std::atomic<int> error{0};
  std::atomic<int64_t> bad{-1};
  std::atomic<uint32_t> found{0};

  uint64_t EndOf(uint64_t piece) const { return read.offsets[piece] + read.lengths[piece]; }
  // The first piece that reaches beyond `at`.
  uint64_t PieceBeyond(uint64_t at) const {
    uint64_t low = 0, high = read.count;
    while (low < high) {
      const uint64_t middle = (low + high) / 2;
      if (EndOf(middle) > at) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }
  char* AddressOf(uint64_t piece, uint64_t at) const {
    return reinterpret_cast<char*>(read.addresses[piece] + (at - read.offsets[piece]));
  }
};

// Where the next bytes of a chunk go: into the pieces and, for what lies between them, which the checksum
// needs as well, into scratch memory. At most kCachedPiece bytes.
struct Batch {
  iovec vectors[kMaxVectors];
  int count = 0;
  uint64_t bytes = 0;
};

void Gather(const Job& job, uint64_t at, uint64_t end, char* scratch, Batch& batch) {
  const uint64_t count = job.read.count;
  uint64_t piece = job.PieceBeyond(at);
  while (at < end && batch.count < kMaxVectors && batch.bytes < kCachedPiece) {
    while (piece < count && job.EndOf(piece) <= at) ++piece;
    const bool wanted = piece < count && job.read.offsets[piece] <= at;
    const uint64_t stop = piece == count ? end
                          : wanted       ? std::min(end, job.EndOf(piece))
                                         : std::min(end, job.read.offsets[piece]);
    const uint64_t n = std::min(stop - at, kCachedPiece - batch.bytes);
    if (wanted && job.read.fresh) FaultIn(job.AddressOf(piece, at), n);
    batch.vectors[batch.count++] = {wanted ? job.AddressOf(piece, at) : scratch + batch.bytes,
                                    static_cast<size_t>(n)};
    batch.bytes += n;
    at += n;
  }
}

// Calls preadv2() directly: it is younger than the libraries that this must run with.
ssize_t ReadNow(int fd, const iovec* vectors, int count, uint64_t at) {
  return syscall(SYS_preadv2, fd, vectors, count, static_cast<long>(at), 0L, kNoWait);
}

// Whether some of these bytes are in the page cache. The kernel answers a read with RWF_NOWAIT of bytes that
// are not there by reading them ahead into the page cache, beside the direct read that follows.
bool MayBeCached(int fd, uint64_t at, uint64_t size) {
  constexpr long kCachestat = 451;  // Since Linux 6.5.
  const uint64_t range[2] = {at, size};
  uint64_t pages[5] = {};  // In the cache, dirty, under writeback, evicted, recently evicted.
  return syscall(kCachestat, fd, range, pages, 0) != 0 || pages[0] > 0;
}

// How far the reading of a chunk has come.
struct Progress {
  uint64_t at;
  uint32_t crc = 0;
};

// Reads through the page cache up to `end`. If the rest can be read directly, stops where the cache ends.
int ReadCached(const Job& job, uint64_t end, char* scratch, Progress& done) {
  while (done.at < end) {
    Batch batch;
    Gather(job, done.at, end, scratch, batch);
    // In the middle of a block it waits: its page was dropped from the cache at this moment.
    const bool waits = job.direct < 0 || done.at % kBlock != 0;
    const ssize_t n = waits ? preadv(job.read.fd, batch.vectors, batch.count, static_cast<off_t>(done.at))
                            : ReadNow(job.read.fd, batch.vectors, batch.count, done.at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && !waits) return 0;  // EAGAIN, or not supported here.
    if (n < 0) return errno;
    if (n == 0) return ENODATA;
    done.at += static_cast<uint64_t>(n);
    for (size_t left = static_cast<size_t>(n), i = 0; left > 0; ++i) {
      const size_t here = std::min(left, batch.vectors[i].iov_len);
      done.crc = Crc32c(std::span(static_cast<const std::byte*>(batch.vectors[i].iov_base), here), done.crc);
      left -= here;
    }
  }
  return 0;
}

// Copies the requested bytes of [at, at + size) from a buffer to their pieces.
void Scatter(const Job& job, uint64_t at, const char* buffer, uint64_t size) {
  for (uint64_t piece = job.PieceBeyond(at); piece < job.read.count; ++piece) {
    const uint64_t first = std::max(at, job.read.offsets[piece]),
                   last = std::min(at + size, job.EndOf(piece));
    if (job.read.offsets[piece] >= at + size) return;
    if (first >= last) continue;
    char* const to = job.AddressOf(piece, first);
    if (job.read.fresh) FaultIn(to, last - first);
    StreamingCopy(CopyWay::kFromReadBuffer, to, buffer + (first - at), last - first);
  }
}

int ReadDirect(const Job& job, uint64_t end, char* buffer, Progress& done) {
  while (done.at < end) {
    const uint64_t wanted = std::min(kDirectPiece, end - done.at);
    const ssize_t n =
        pread(job.direct, buffer, (wanted + kBlock - 1) / kBlock * kBlock, static_cast<off_t>(done.at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    const uint64_t got = std::min(wanted, static_cast<uint64_t>(n));
    // Only the end of a file may be a partial block.
    if (got == 0 || (got < wanted && got % kBlock != 0)) return ENODATA;
    done.crc = Crc32c(std::span(reinterpret_cast<const std::byte*>(buffer), got), done.crc);
    Scatter(job, done.at, buffer, got);
    done.at += got;
  }
  return 0;
}

// Reads chunk after chunk until none is left, and skips those that no piece touches.
void ReadShare(void* context, int share) {
  auto& job = *static_cast<Job*>(context);
  const uint64_t size = job.read.chunk_bytes;
  char* const buffer = job.buffers + static_cast<uint64_t>(share) * kDirectPiece;
  for (uint64_t chunk = job.next++; chunk < job.end && job.error.load() == 0; chunk = job.next++) {
    if (job.read.stop != nullptr && __atomic_load_n(job.read.stop, __ATOMIC_RELAXED) != 0) {
      job.error = ECANCELED;
      return;
    }
    const uint64_t begin = chunk * size, end = std::min(job.read.file_size, begin + size);
    const uint64_t piece = job.PieceBeyond(begin);
    if (piece == job.read.count || job.read.offsets[piece] >= end) continue;
    if (job.direct < 0) {
      posix_fadvise(job.read.fd, static_cast<off_t>(begin + kAhead), static_cast<off_t>(size),
                    POSIX_FADV_WILLNEED);
    }
    Progress done{begin};
    const bool cached = job.direct < 0 || MayBeCached(job.read.fd, begin, end - begin);
    int error = cached ? ReadCached(job, end, buffer, done) : 0;
    if (error == 0 && done.at < end) error = ReadDirect(job, end, buffer, done);
    if (error == 0 && done.crc != job.read.expected[chunk]) error = EBADMSG;
    if (job.read.done != nullptr) __atomic_add_fetch(job.read.done, done.at - begin, __ATOMIC_RELAXED);
    int none = 0;
    if (error != 0 && job.error.compare_exchange_strong(none, error)) {
      job.found = done.crc;
      job.bad = static_cast<int64_t>(chunk);
    }
  }
}

// Opens the same file with O_DIRECT.
int OpenDirect(int fd) {
  char path[40];
  snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
  return open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
}

// Huge pages double what a disk transfers.
char* MapBuffers(uint64_t size) {
  void* memory = mmap(nullptr, size + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  madvise(memory, size + kHugePage, MADV_HUGEPAGE);
  return static_cast<char*>(memory);
}

char* Aligned(char* memory) { return memory + (-reinterpret_cast<uintptr_t>(memory) & (kHugePage - 1)); }

}  // namespace

ReadFault ReadVerifiedChunks(const VerifiedRead& read, InParallel in_parallel) {
  ReadFault fault;
  if (read.count == 0) return fault;
  const uint64_t chunk_bytes = read.chunk_bytes;
  Job job{read};
  const uint64_t last = job.EndOf(read.count - 1), first = read.offsets[0] / chunk_bytes;
  job.next = first;
  job.end = (last + chunk_bytes - 1) / chunk_bytes;
  if (first >= job.end) return fault;
  const uint64_t chunks = job.end - first;
  if (chunks >= kLeastDirect && chunk_bytes % kBlock == 0) job.direct = OpenDirect(read.fd);
  const uint64_t useful = std::min(chunks, chunks * chunk_bytes / kLeastShare + 1);
  const int threads = std::max(read.threads, job.direct < 0 ? 1 : kDirectDepth);
  const int shares = static_cast<int>(std::clamp<uint64_t>(static_cast<uint64_t>(threads), 1, useful));
  const uint64_t buffer_bytes = static_cast<uint64_t>(shares) * kDirectPiece;
  char* const memory = MapBuffers(buffer_bytes);
  if (memory == nullptr) {
    fault.error = ENOMEM;
    fault.chunk = static_cast<int64_t>(first);
  } else {
    job.buffers = Aligned(memory);
    if (job.direct < 0) {
      posix_fadvise(read.fd, static_cast<off_t>(first * chunk_bytes),
                    static_cast<off_t>(std::min(last - first * chunk_bytes, kAhead)), POSIX_FADV_WILLNEED);
    }
    in_parallel(shares, ReadShare, &job);
    munmap(memory, buffer_bytes + kHugePage);
    fault.error = job.error;
    fault.chunk = job.bad;
    fault.found = job.found;
  }
  if (job.direct >= 0) close(job.direct);
  return fault;
}

}  // namespace ckptd
