// memcpy for bytes that nobody reads again soon, such as a checkpoint's on their way to shared memory.
#ifndef CKPTD_STORAGE_BASE_STREAMING_COPY_H_
#define CKPTD_STORAGE_BASE_STREAMING_COPY_H_

#include <cstddef>

namespace ckptd {

// As memcpy. Large copies go past the cache: the target's lines are not read first, which is worth 1.3 to 2
// times a memcpy of pieces up to some hundred MiB (glibc goes past it only above three quarters of the last
// cache level, which on a large processor is more than a segment). Needs nothing of C++'s runtime library.
void StreamingCopy(void* to, const void* from, size_t size);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_BASE_STREAMING_COPY_H_
