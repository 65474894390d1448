// Reads pieces of a file and checks every chunk that they touch, for all clients. Reads with O_DIRECT and
// many reads in flight, unless the bytes are in the page cache.
//
// Uses nothing of the C++ runtime library, because the Python package's native library contains it.
#ifndef CKPTD_STORAGE_IO_VERIFIED_READ_H_
#define CKPTD_STORAGE_IO_VERIFIED_READ_H_

#include <cstdint>

namespace ckptd {

struct VerifiedRead {
  int fd;
  uint64_t file_size;
  uint64_t chunk_bytes;
  const uint32_t* expected;   // The CRC32C of every chunk of the file.
  const uint64_t* offsets;    // Of the pieces: ascending, without overlaps, and all within the file.
  const uint64_t* addresses;  // Where the pieces go.
  const uint64_t* lengths;
  uint64_t count;
  int threads;                    // The most threads that compute at once.
  uint64_t* done = nullptr;       // Grows by the bytes of the chunks that were read. May be null.
  const int32_t* stop = nullptr;  // When it becomes nonzero, reading soon ends with ECANCELED. May be null.
  bool fresh = false;             // The pieces' memory was never touched: fault it in many pages at a time.
};

struct ReadFault {
  int error = 0;       // 0: no fault. EBADMSG: a wrong CRC. ENODATA: the file ended early. Or an errno.
  int64_t chunk = -1;  // The first faulty chunk that was found.
  uint32_t found = 0;  // Its CRC.
};

// Calls work(context, share) for each share in [0, shares), on as many threads as can be made.
using InParallel = void (*)(int shares, void (*work)(void*, int), void* context);

// Reads and checks. Blocks. After a fault the read bytes must not be used.
ReadFault ReadVerifiedChunks(const VerifiedRead& read, InParallel in_parallel);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_IO_VERIFIED_READ_H_
