// memcpy for bytes that are not read again soon, such as a checkpoint's on their way to shared memory.
#ifndef CKPTD_STORAGE_BASE_MEMORY_STREAMING_COPY_H_
#define CKPTD_STORAGE_BASE_MEMORY_STREAMING_COPY_H_

#include <cstddef>

#include "storage/base/memory/copy_loops.h"

namespace ckptd {

// Where bytes go. Each way has a fastest loop of its own.
enum class CopyWay {
  kIntoSegment,     // From a trainer's tensors to the daemon's memory.
  kOutOfSegment,    // Back.
  kFromReadBuffer,  // From a buffer that was filled just now, and may be in the processor's cache.
};

// Copies like memcpy, by the loop that is fastest for the way on this processor
// (storage/base/memory/measured_copy.h). Most loops bypass the cache, so the target's lines are not read
// first. (glibc bypasses it only above three quarters of the last cache level, which on a large processor is
// more than a segment.) Any thread may call it. Uses nothing of the C++ runtime library.
void StreamingCopy(CopyWay way, void* to, const void* from, size_t size);

// The loop that this process has chosen for the way; null before it has copied enough to know.
const CopyLoop* FastestCopyLoop(CopyWay way);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_BASE_MEMORY_STREAMING_COPY_H_
