// Reads pieces of a file and checks every chunk that they touch: the way back of all clients. Past the page
// cache at depth, unless the bytes are in it.
//
// Needs nothing of C++'s runtime library: the Python package's native library is made of it.
#ifndef CKPTD_STORAGE_IO_VERIFIED_READ_H_
#define CKPTD_STORAGE_IO_VERIFIED_READ_H_

#include <cstdint>

namespace ckptd {

struct VerifiedRead {
  int fd;
  uint64_t file_size;
  uint64_t chunk_bytes;
  const uint32_t* expected;  // The CRC32C of every chunk of the file.
  const uint64_t* offsets;   // Of the pieces, in the file: in its order, none over another or beyond its end.
  const uint64_t* addresses;  // Where they go.
  const uint64_t* lengths;
  uint64_t count;
  int threads;                    // That may compute at once.
  uint64_t* done = nullptr;       // Grows by the bytes of chunks that are read; null: nobody looks.
  const int32_t* stop = nullptr;  // Not 0: reading ends soon, with ECANCELED. Null: never.
};

struct ReadFault {
  int error = 0;       // An errno; EBADMSG: a wrong CRC; ENODATA: the file ended early. 0: all is well.
  int64_t chunk = -1;  // The first that was found not to be well.
  uint32_t found = 0;  // Its CRC.
};

// work(context, share) for each share in [0, shares), by as many threads as there are to be had.
using InParallel = void (*)(int shares, void (*work)(void*, int), void* context);

// After a fault what was read is not to be used. Blocks.
ReadFault ReadVerifiedChunks(const VerifiedRead& read, InParallel in_parallel);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_IO_VERIFIED_READ_H_
