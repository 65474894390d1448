// Huge pages for memory that several processes share, without a setting of the system.
#ifndef CKPTD_STORAGE_BASE_MEMORY_HUGE_PAGES_H_
#define CKPTD_STORAGE_BASE_MEMORY_HUGE_PAGES_H_

#include <cstddef>
#include <cstdint>

namespace ckptd {

inline constexpr int64_t kHugePageBytes = int64_t{2} << 20;

// Puts each 2 MiB of a mapping of a memfd on a huge page, whatever shmem_enabled says unless that is "deny"
// (MADV_COLLAPSE, Linux 6.1). `data` and `size` are multiples of kHugePageBytes. Bytes stay as they are.
// Returns 0 or an errno: EINVAL if this kernel has no such call, or shmem_enabled is "deny". After an error
// some of the range may be on huge pages, and some of it may lack pages. Thread-safe.
int MakePagesHuge(std::byte* data, int64_t size);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_BASE_MEMORY_HUGE_PAGES_H_
