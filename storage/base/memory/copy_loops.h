// The ways to copy memory between which a process chooses by measuring them: which one is fastest depends on
// the processor.
#ifndef CKPTD_STORAGE_BASE_MEMORY_COPY_LOOPS_H_
#define CKPTD_STORAGE_BASE_MEMORY_COPY_LOOPS_H_

#include <cstddef>
#include <span>

namespace ckptd {

struct CopyLoop {
  const char* name;
  bool (*works_here)();                                   // Whether this processor has the instructions.
  void (*copy)(char* to, const char* from, size_t size);  // Any size, any addresses that do not overlap.
};

// All loops, the preferred ones first. The last one is memcpy, which works on every processor. They use
// nothing of the C++ runtime library.
std::span<const CopyLoop> CopyLoops();

}  // namespace ckptd
#endif  // CKPTD_STORAGE_BASE_MEMORY_COPY_LOOPS_H_
