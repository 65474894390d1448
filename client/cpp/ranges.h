// Slices of one file, many at once, as they are read: in the order of the disk, no byte twice.
#ifndef CKPTD_CLIENT_CPP_RANGES_H_
#define CKPTD_CLIENT_CPP_RANGES_H_

#include <vector>

#include "client/cpp/copy.h"
#include "storage/commit/disk_file.h"

namespace ckptd::client {

struct RangePlan {
  std::vector<FilePiece> pieces;  // To read: none is empty, none reaches over another.
  std::vector<CopyStep> copies;   // Then, in this order: what several want, from who has it already.
};

// The slices in any order, empty ones and ones that reach over others included.
RangePlan PlanRanges(std::vector<FilePiece> wanted);

}  // namespace ckptd::client
#endif  // CKPTD_CLIENT_CPP_RANGES_H_
