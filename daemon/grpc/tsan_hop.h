// For ThreadSanitizer: how gRPC orders the callbacks of one call. Debian's gRPC is not built for it, so it
// cannot see that. Empty in every other build.
#ifndef CKPTD_DAEMON_GRPC_TSAN_HOP_H_
#define CKPTD_DAEMON_GRPC_TSAN_HOP_H_

// .bazelrc defines it in every file of such a build, those that are not instrumented included.
#ifdef _GLIBCXX_TSAN
#include <sanitizer/tsan_interface.h>
#endif

namespace ckptd {

// What this thread did before GiveOn(what) happened before what another does after TakeOver(what).
inline void GiveOn([[maybe_unused]] void* what) {
#ifdef _GLIBCXX_TSAN
  __tsan_release(what);
#endif
}
inline void TakeOver([[maybe_unused]] void* what) {
#ifdef _GLIBCXX_TSAN
  __tsan_acquire(what);
#endif
}

}  // namespace ckptd
#endif  // CKPTD_DAEMON_GRPC_TSAN_HOP_H_
