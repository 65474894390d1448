#include "storage/base/streaming_copy.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstdint>

namespace ckptd {
namespace {

#if defined(__x86_64__)
constexpr size_t kLine = 128;  // Bytes copied at a time: two cache lines, as the processor fetches them.
constexpr size_t kPage = 4096;
constexpr size_t kPages =
    8;  // Pages read in turns: so many streams keep the prefetcher busy, and one would not.
constexpr size_t kLeastStreamed = kPage;

__attribute__((target("avx2"), always_inline)) inline void CopyLine(char* to, const char* from) {
  __m256i part[4];
  for (int i = 0; i < 4; ++i) part[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 32 * i));
  for (int i = 0; i < 4; ++i) _mm256_stream_si256(reinterpret_cast<__m256i*>(to + 32 * i), part[i]);
}

// Copies several pages at a time, one line of each in turn, as glibc's memcpy does for sizes that it
// considers large.
__attribute__((target("avx2"))) void CopyPastTheCache(char* to, const char* from, size_t size) {
  const size_t head = std::min<size_t>(size, -reinterpret_cast<uintptr_t>(to) % 64);
  memcpy(to, from, head);
  size_t at = head;
  for (; size - at >= kPages * kPage; at += kPages * kPage) {
    for (size_t line = at; line < at + kPage; line += kLine) {
      for (size_t page = 0; page < kPages; ++page)
        CopyLine(to + line + page * kPage, from + line + page * kPage);
    }
  }
  for (; size - at >= kLine; at += kLine) CopyLine(to + at, from + at);
  _mm_sfence();
  memcpy(to + at, from + at, size - at);
}
#endif

}  // namespace

void StreamingCopy(void* to, const void* from, size_t size) {
#if defined(__x86_64__)
  if (size >= kLeastStreamed && __builtin_cpu_supports("avx2")) {
    return CopyPastTheCache(static_cast<char*>(to), static_cast<const char*>(from), size);
  }
#endif
  if (size > 0) memcpy(to, from, size);
}

}  // namespace ckptd
