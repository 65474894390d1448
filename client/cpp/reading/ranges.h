// Plans the reading of many slices of one file: in ascending order of offsets, and no byte twice.
#ifndef CKPTD_CLIENT_CPP_READING_RANGES_H_
#define CKPTD_CLIENT_CPP_READING_RANGES_H_

#include <vector>

#include "client/cpp/memory/copy.h"
#include "storage/commit/checkpoint/disk_file.h"

namespace ckptd::client {

struct RangePlan {
  std::vector<FilePiece> pieces;  // To read, in order; none is empty, and none overlaps another.
  std::vector<CopyStep> copies;   // To run afterwards, in order: bytes that several slices share.
};

// The slices may come in any order, overlap, and be empty.
RangePlan PlanRanges(std::vector<FilePiece> wanted);

}  // namespace ckptd::client
#endif  // CKPTD_CLIENT_CPP_READING_RANGES_H_
