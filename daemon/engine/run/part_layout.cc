#include "daemon/engine/run/part_layout.h"

#include <algorithm>
#include <utility>

namespace ckptd {

int64_t MemoryBytes(const std::vector<SegmentRef>& segments) {
  int64_t bytes = 0;
  for (const SegmentRef& segment : segments) bytes += segment.size;
  return bytes;
}

std::vector<std::span<std::byte>> MemoryRuns(const std::vector<SegmentRef>& segments, int64_t offset,
                                             int64_t size) {
  std::vector<std::span<std::byte>> runs;
  for (const SegmentRef& segment : segments) {
    const int64_t skip = std::min(offset, segment.size);
    const int64_t bytes = std::min(size, segment.size - skip);
    if (bytes > 0) runs.emplace_back(segment.data + skip, static_cast<size_t>(bytes));
    offset -= skip;
    size -= bytes;
  }
  return runs;
}

std::vector<FileImage> ImagesOf(const std::vector<SealedFile>& files,
                                const std::vector<SegmentRef>& segments) {
  std::vector<FileImage> images;
  images.reserve(files.size());
  for (const SealedFile& file : files) {
    FileImage image;
    image.path = file.placed->path;
    image.size = file.size;
    for (std::span<std::byte> run : MemoryRuns(segments, file.placed->offset, image.size))
      image.runs.emplace_back(run);
    images.push_back(std::move(image));
  }
  return images;
}

}  // namespace ckptd
