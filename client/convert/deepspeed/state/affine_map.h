// Where the ranks that share a parameter have its elements: DeepSpeed's affine maps. A training program
// leaves them in universal_checkpoint_info where no pattern describes how a parameter was cut, and the
// placement of experts is one, too.
//
// Each rank has a slice: a tensor of its own that consists of pieces. A piece is a block of elements that
// lies somewhere in the whole parameter and somewhere in the slice, with strides of its own in both. Several
// ranks may have copies of a piece.
#ifndef CKPTD_CLIENT_CONVERT_DEEPSPEED_STATE_AFFINE_MAP_H_
#define CKPTD_CLIENT_CONVERT_DEEPSPEED_STATE_AFFINE_MAP_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "client/convert/deepspeed/state/slice_ranges.h"
#include "client/convert/files/plan_archive.h"
#include "client/formats/data_type.h"
#include "client/formats/torch/value.h"

namespace ckptd {

// Offsets and strides are in elements, none of them is negative, and all of the piece lies within the whole
// and within the slice.
struct AffinePiece {
  std::vector<int64_t> shape;
  int64_t whole_offset = 0;
  std::vector<int64_t> whole_strides;
  int64_t slice_offset = 0;
  std::vector<int64_t> slice_strides;
};

struct AffineMap {
  struct Slice {
    std::vector<int64_t> shape;
    std::vector<AffinePiece> pieces;
  };

  std::vector<int64_t> shape;  // Of the whole parameter.
  std::vector<Slice> slices;   // By rank.
};

// Reads a map as ParamAffineMap.to_dict() writes it. CANNOT_CONVERT for what is not one, and for a piece
// with a scale: the states of the optimizer cannot be scaled back without the learning rate.
absl::StatusOr<AffineMap> ParseAffineMap(const torch::ValueRef& value);

// The elements of the whole parameter, in order. Reads only what several ranks have, to compare it.
// CANNOT_CONVERT if the slices are not those that the map describes, if the pieces do not make up each slice
// and cover the whole, or if copies differ.
absl::StatusOr<std::vector<SourceRange>> MergeByMap(const AffineMap& map, const std::vector<TpSlice>& slices,
                                                    DataType dtype, const ReadRange& read);

}  // namespace ckptd
#endif  // CKPTD_CLIENT_CONVERT_DEEPSPEED_STATE_AFFINE_MAP_H_
