// Faulting in memory that nobody has touched yet: page by page it takes several times as long as a copy.
// Uses nothing of the C++ runtime library, because the Python package's native library contains it.
#ifndef CKPTD_STORAGE_BASE_MEMORY_FRESH_MEMORY_H_
#define CKPTD_STORAGE_BASE_MEMORY_FRESH_MEMORY_H_

#include <cstddef>
#include <cstdint>

namespace ckptd {

// Asks the kernel to back the memory of these buffers by huge pages where it can, from now on. Buffers that
// lie side by side are taken together, because many a buffer alone holds no whole huge page. The buffers are
// ordered by address. Best effort, for memory that is about to be filled for the first time.
void AdviseHugePages(const uint64_t* addresses, const uint64_t* lengths, uint64_t count);

// Faults in the pages of [begin, begin + size) in one call. Best effort: without it, each page is faulted in
// when it is first written. Changes no byte.
void FaultIn(char* begin, size_t size);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_BASE_MEMORY_FRESH_MEMORY_H_
