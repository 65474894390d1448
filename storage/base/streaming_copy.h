// memcpy for bytes that are not read again soon, such as a checkpoint's on their way to shared memory.
#ifndef CKPTD_STORAGE_BASE_STREAMING_COPY_H_
#define CKPTD_STORAGE_BASE_STREAMING_COPY_H_

#include <cstddef>

namespace ckptd {

// Copies like memcpy. Large copies bypass the cache, so the target's lines are not read first. That is 1.3 to
// 2 times as fast as memcpy for pieces up to some hundred MiB. (glibc bypasses the cache only above three
// quarters of the last cache level, which on a large processor is more than a segment.) Uses nothing of the
// C++ runtime library.
void StreamingCopy(void* to, const void* from, size_t size);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_BASE_STREAMING_COPY_H_
