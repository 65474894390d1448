// Tells ThreadSanitizer how gRPC orders the callbacks of one call, which it cannot see because Debian's gRPC
// is not instrumented. Empty in every other build.
#ifndef CKPTD_DAEMON_GRPC_BASE_TSAN_HOP_H_
#define CKPTD_DAEMON_GRPC_BASE_TSAN_HOP_H_

// .bazelrc defines it for every file of a TSan build, including those that are not instrumented.
#ifdef _GLIBCXX_TSAN
#include <sanitizer/tsan_interface.h>
#endif

namespace ckptd {

// What this thread did before TsanRelease(what) happens before what another thread does after
// TsanAcquire(what).
inline void TsanRelease([[maybe_unused]] void* what) {
#ifdef _GLIBCXX_TSAN
  __tsan_release(what);
#endif
}
inline void TsanAcquire([[maybe_unused]] void* what) {
#ifdef _GLIBCXX_TSAN
  __tsan_acquire(what);
#endif
}

}  // namespace ckptd
#endif  // CKPTD_DAEMON_GRPC_BASE_TSAN_HOP_H_
