// Joins the chunks of a tensor: each rank of a distributed checkpoint saves a box of the tensor's elements.
#ifndef CKPTD_CLIENT_CONVERT_DCP_JOIN_CHUNKS_H_
#define CKPTD_CLIENT_CONVERT_DCP_JOIN_CHUNKS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "client/convert/files/plan_archive.h"

namespace ckptd {

// A tensor of more runs of bytes is refused: they are in memory.
inline constexpr size_t kMaxChunkRuns = 2 << 20;

// A box of a tensor, in elements, and where its elements are in a file.
struct ChunkSource {
  std::vector<int64_t> offsets;  // Of the box's first element in the tensor.
  std::vector<int64_t> sizes;
  std::vector<int64_t> stride;  // Of the elements in the file.
  int input = 0;                // As in SourceRange.
  int64_t from = 0;             // The byte of the box's first element in that file.
};

// Where the elements of a contiguous tensor of `shape` are, in order. Runs that follow each other in a file are one
// range. CANNOT_CONVERT if the chunks leave elements out, overlap or exceed the tensor, or if there are more than
// kMaxChunkRuns runs.
absl::StatusOr<std::vector<SourceRange>> JoinChunks(const std::vector<int64_t>& shape, int64_t item_bytes,
                                                    const std::vector<ChunkSource>& chunks);

}  // namespace ckptd
#endif  // CKPTD_CLIENT_CONVERT_DCP_JOIN_CHUNKS_H_
