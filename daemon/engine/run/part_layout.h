// Where files lie in the memory of a part: each begins on a page, and a part's segments follow one another.
#ifndef CKPTD_DAEMON_ENGINE_RUN_PART_LAYOUT_H_
#define CKPTD_DAEMON_ENGINE_RUN_PART_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "daemon/engine/run/file_places.h"
#include "daemon/engine/seams/root_io.h"
#include "daemon/memory/segment_pool.h"

namespace ckptd {

inline constexpr int64_t kPage = 4096;
// Rounds up to whole pages.
inline int64_t RoundUp(int64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

// Less than the files that are placed, while the memory that an Extend asks for is still being made.
int64_t MemoryBytes(const std::vector<SegmentRef>& segments);
// The memory of `size` bytes from `offset` on, as runs in the order of the segments, which have as many.
std::vector<std::span<std::byte>> MemoryRuns(const std::vector<SegmentRef>& segments, int64_t offset,
                                             int64_t size);

// The files of a sealed part as they lie in memory.
std::vector<FileImage> ImagesOf(const std::vector<SealedFile>& files,
                                const std::vector<SegmentRef>& segments);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_RUN_PART_LAYOUT_H_
