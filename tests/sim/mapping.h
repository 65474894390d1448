// A segment as a simulated trainer maps it.
#ifndef CKPTD_TESTS_SIM_MAPPING_H_
#define CKPTD_TESTS_SIM_MAPPING_H_

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

#include "daemon/memory/segment_pool.h"

namespace ckptd::sim {

// Takes the descriptor.
struct Mapping {
  Mapping(int fd, int64_t bytes, SegmentAccess access)
      : data(static_cast<std::byte*>(mmap(nullptr, static_cast<size_t>(bytes),
                                          access == SegmentAccess::kRead ? PROT_READ : PROT_READ | PROT_WRITE,
                                          MAP_SHARED, fd, 0))),
        size(bytes) {
    close(fd);
  }
  ~Mapping() {
    if (data != MAP_FAILED) munmap(data, static_cast<size_t>(size));
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::byte* const data;
  const int64_t size;
};

}  // namespace ckptd::sim
#endif  // CKPTD_TESTS_SIM_MAPPING_H_
