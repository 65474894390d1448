#include "storage/base/memory/streaming_copy.h"

#include <time.h>

#include <cstdint>

#include "storage/base/memory/measured_copy.h"

namespace ckptd {
namespace {

int64_t Nanoseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

constinit MeasuredCopy ways[] = {
    {CopyLoops, Nanoseconds},
    {CopyLoops, Nanoseconds},
    {CopyLoops, Nanoseconds},
};

MeasuredCopy& CopyFor(CopyWay way) { return ways[static_cast<int>(way)]; }

}  // namespace

void StreamingCopy(CopyWay way, void* to, const void* from, size_t size) {
  CopyFor(way).Copy(static_cast<char*>(to), static_cast<const char*>(from), size);
}

const CopyLoop* FastestCopyLoop(CopyWay way) { return CopyFor(way).fastest(); }

}  // namespace ckptd
