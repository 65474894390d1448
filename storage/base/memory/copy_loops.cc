#include "storage/base/memory/copy_loops.h"

#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstdint>

namespace ckptd {
namespace {

void CopyByMemcpy(char* to, const char* from, size_t size) {
  if (size > 0) memcpy(to, from, size);
}

bool WorksEverywhere() { return true; }

#if defined(__x86_64__)
constexpr size_t kLine = 128;  // Bytes copied at a time: two cache lines, as the processor fetches them.
constexpr size_t kWideLine = 256;
constexpr size_t kPage = 4096;
constexpr size_t kPages = 8;  // That the interleaved loop reads in turns, one stream for each.

__attribute__((target("avx2"), always_inline)) inline void CopyLine(char* to, const char* from) {
  __m256i part[4];
  for (int i = 0; i < 4; ++i) part[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 32 * i));
  for (int i = 0; i < 4; ++i) _mm256_stream_si256(reinterpret_cast<__m256i*>(to + 32 * i), part[i]);
}

__attribute__((target("avx512f"), always_inline)) inline void CopyWideLine(char* to, const char* from) {
  __m512i part[4];
  for (int i = 0; i < 4; ++i) part[i] = _mm512_loadu_si512(from + 64 * i);
  for (int i = 0; i < 4; ++i) _mm512_stream_si512(reinterpret_cast<__m512i*>(to + 64 * i), part[i]);
}

// Copies up to a target address that streaming stores accept. Returns how many bytes these are.
size_t CopyHead(char* to, const char* from, size_t size) {
  const size_t head = std::min<size_t>(size, -reinterpret_cast<uintptr_t>(to) % 64);
  CopyByMemcpy(to, from, head);
  return head;
}

// Orders the streaming stores before what follows, and copies the bytes that are too few for them.
void CopyTail(char* to, const char* from, size_t at, size_t size) {
  _mm_sfence();
  CopyByMemcpy(to + at, from + at, size - at);
}

__attribute__((target("avx2"))) void CopyLinear(char* to, const char* from, size_t size) {
  size_t at = CopyHead(to, from, size);
  for (; size - at >= kLine; at += kLine) CopyLine(to + at, from + at);
  CopyTail(to, from, at, size);
}

// One line of each of several pages in turn, as glibc's memcpy does for sizes that it considers large: while
// the processor waits for the translation of one page's address, it copies from the others.
__attribute__((target("avx2"))) void CopyInterleaved(char* to, const char* from, size_t size) {
  size_t at = CopyHead(to, from, size);
  for (; size - at >= kPages * kPage; at += kPages * kPage) {
    for (size_t line = at; line < at + kPage; line += kLine) {
      for (size_t page = 0; page < kPages; ++page)
        CopyLine(to + line + page * kPage, from + line + page * kPage);
    }
  }
  for (; size - at >= kLine; at += kLine) CopyLine(to + at, from + at);
  CopyTail(to, from, at, size);
}

__attribute__((target("avx512f"))) void CopyWide(char* to, const char* from, size_t size) {
  size_t at = CopyHead(to, from, size);
  for (; size - at >= kWideLine; at += kWideLine) CopyWideLine(to + at, from + at);
  CopyTail(to, from, at, size);
}

__attribute__((target("avx512f"))) void CopyWideInterleaved(char* to, const char* from, size_t size) {
  size_t at = CopyHead(to, from, size);
  for (; size - at >= kPages * kPage; at += kPages * kPage) {
    for (size_t line = at; line < at + kPage; line += kWideLine) {
      for (size_t page = 0; page < kPages; ++page)
        CopyWideLine(to + line + page * kPage, from + line + page * kPage);
    }
  }
  for (; size - at >= kWideLine; at += kWideLine) CopyWideLine(to + at, from + at);
  CopyTail(to, from, at, size);
}

void CopyByString(char* to, const char* from, size_t size) {
  asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(size) : : "memory");
}

bool HasAvx2() { return __builtin_cpu_supports("avx2"); }
bool HasAvx512() { return __builtin_cpu_supports("avx512f"); }

// Enhanced REP MOVSB: without it the instruction copies byte by byte.
bool HasFastStrings() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kErms = 1u << 9;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & kErms) != 0;
}
#endif

constexpr CopyLoop kLoops[] = {
#if defined(__x86_64__)
    {"avx2", HasAvx2, CopyLinear},
    {"avx512", HasAvx512, CopyWide},
    {"rep-movsb", HasFastStrings, CopyByString},
    {"avx2-interleaved", HasAvx2, CopyInterleaved},
    {"avx512-interleaved", HasAvx512, CopyWideInterleaved},
#endif
    {"memcpy", WorksEverywhere, CopyByMemcpy},
};

}  // namespace

std::span<const CopyLoop> CopyLoops() { return kLoops; }

}  // namespace ckptd
