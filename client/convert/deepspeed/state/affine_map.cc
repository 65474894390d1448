#include "client/convert/deepspeed/state/affine_map.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/convert/deepspeed/state/ds_value.h"
#include "client/convert/files/convert_error.h"
#include "client/convert/files/value_text.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

using torch::Dict;
using torch::ValueRef;

constexpr char kWhere[] = "affine_map";
constexpr int64_t kMaxElements = int64_t{1} << 58;

absl::StatusOr<int64_t> Elements(const std::vector<int64_t>& shape) {
  int64_t elements = 1;
  for (const int64_t size : shape) {
    if (__builtin_mul_overflow(elements, size, &elements) || elements > kMaxElements)
      return CannotConvert(absl::StrCat("an affine_map has the impossible shape ", ShapeText(shape)));
  }
  return elements;
}

// ---- Parsing ----

// [offset, strides]
struct Place {
  int64_t offset = 0;
  std::vector<int64_t> strides;
};

absl::StatusOr<Place> ParsePlace(const Dict& piece, const char* key) {
  CKPTD_ASSIGN_OR_RETURN(const std::vector<ValueRef>* pair, ds::Items(piece.Find(key), kWhere));
  if (pair->size() != 2) return ds::Unexpected(kWhere, piece.Find(key).get(), "an offset and strides");
  Place place;
  CKPTD_ASSIGN_OR_RETURN(place.offset, ds::Integer((*pair)[0], kWhere));
  CKPTD_ASSIGN_OR_RETURN(place.strides, ds::Sizes((*pair)[1], kWhere));
  return place;
}

// Whether a block lies within `elements`.
bool IsWithin(const Place& place, const std::vector<int64_t>& shape, int64_t elements) {
  if (place.offset < 0 || place.strides.size() != shape.size()) return false;
  __int128 last = place.offset;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 0) return true;
    last += static_cast<__int128>(shape[i] - 1) * place.strides[i];
  }
  return last < elements;
}

bool IsScaled(const ValueRef& scale) {
  if (scale == nullptr) return false;
  const auto* number = scale->As<double>();
  const auto* whole = scale->As<int64_t>();
  return !(number != nullptr && *number == 1.0) && !(whole != nullptr && *whole == 1);
}

absl::StatusOr<AffinePiece> ParsePiece(const ValueRef& value, int64_t whole, int64_t slice) {
  CKPTD_ASSIGN_OR_RETURN(const Dict* fields, ds::As<Dict>(value, kWhere, "a piece"));
  if (IsScaled(fields->Find("scale")))
    return CannotConvert(
        "an affine_map has a scaled piece, and nothing says how the optimizer's states are to be scaled; "
        "DeepSpeed refuses it, too");
  AffinePiece piece;
  CKPTD_ASSIGN_OR_RETURN(piece.shape, ds::Sizes(fields->Find("shape"), kWhere));
  CKPTD_RETURN_IF_ERROR(Elements(piece.shape).status());
  CKPTD_ASSIGN_OR_RETURN(Place source, ParsePlace(*fields, "source"));
  CKPTD_ASSIGN_OR_RETURN(Place dest, ParsePlace(*fields, "dest"));
  if (!IsWithin(source, piece.shape, whole) || !IsWithin(dest, piece.shape, slice))
    return CannotConvert(absl::StrCat("an affine_map has a piece ", ShapeText(piece.shape), " at ",
                                      source.offset, " of ", whole, " and ", dest.offset, " of ", slice,
                                      " elements, which it exceeds"));
  piece.whole_offset = source.offset;
  piece.whole_strides = std::move(source.strides);
  piece.slice_offset = dest.offset;
  piece.slice_strides = std::move(dest.strides);
  return piece;
}

absl::StatusOr<AffineMap::Slice> ParseSlice(const ValueRef& value, int64_t whole) {
  CKPTD_ASSIGN_OR_RETURN(const Dict* fields, ds::As<Dict>(value, kWhere, "a dict for each rank from 0 on"));
  AffineMap::Slice slice;
  CKPTD_ASSIGN_OR_RETURN(slice.shape, ds::Sizes(fields->Find("shard_shape"), "shard_shape of an affine_map"));
  CKPTD_ASSIGN_OR_RETURN(const int64_t elements, Elements(slice.shape));
  CKPTD_ASSIGN_OR_RETURN(const std::vector<ValueRef>* pieces,
                         ds::Items(fields->Find("pieces"), "pieces of an affine_map"));
  for (const ValueRef& item : *pieces) {
    CKPTD_ASSIGN_OR_RETURN(AffinePiece piece, ParsePiece(item, whole, elements));
    slice.pieces.push_back(std::move(piece));
  }
  return slice;
}

// ---- Merging ----

// Elements that are in one run both in the whole and in a rank's slice.
struct ElementRun {
  int64_t whole, slice, count;
  size_t rank;
};

class Merger {
 public:
  Merger(const AffineMap& map, const std::vector<TpSlice>& slices, DataType dtype, const ReadRange& read)
      : map_(map), slices_(slices), item_(InfoOf(dtype).item_bytes), read_(read) {}

  absl::StatusOr<std::vector<SourceRange>> Run() {
    CKPTD_RETURN_IF_ERROR(CheckSlices());
    for (size_t rank = 0; rank < slices_.size(); ++rank) CKPTD_RETURN_IF_ERROR(AddRuns(rank));
    CKPTD_RETURN_IF_ERROR(Join());
    return std::move(merged_);
  }

 private:
  absl::Status CheckSlices() const {
    bool same = map_.slices.size() == slices_.size();
    for (size_t rank = 0; same && rank < slices_.size(); ++rank) {
      CKPTD_ASSIGN_OR_RETURN(const int64_t wanted, Elements(map_.slices[rank].shape));
      CKPTD_ASSIGN_OR_RETURN(const int64_t found, Elements(slices_[rank].shape));
      if (wanted != found)
        return CannotConvert(absl::StrCat("rank ", rank, " has it as ", ShapeText(slices_[rank].shape),
                                          ", and its affine_map says ", ShapeText(map_.slices[rank].shape)));
    }
    if (same) return absl::OkStatus();
    return CannotConvert(
        absl::StrCat("its affine_map is of ", map_.slices.size(), " ranks, and there are ", slices_.size()));
  }

  absl::Status AddRuns(size_t rank) {
    const size_t first = runs_.size();
    for (const AffinePiece& piece : map_.slices[rank].pieces) CKPTD_RETURN_IF_ERROR(AddPiece(piece, rank));
    CKPTD_ASSIGN_OR_RETURN(const int64_t elements, Elements(slices_[rank].shape));
    return CheckSlice(first, rank, elements);
  }

  // The last dimensions of a piece may be one run in both. Walks over the other ones.
  absl::Status AddPiece(const AffinePiece& piece, size_t rank) {
    CKPTD_ASSIGN_OR_RETURN(const int64_t elements, Elements(piece.shape));
    if (elements == 0) return absl::OkStatus();
    int64_t count = 1;
    size_t outer = piece.shape.size();
    while (outer > 0 && IsRun(piece, outer - 1, count)) count *= piece.shape[--outer];
    if (runs_.size() + static_cast<size_t>(elements / count) > kMaxMergedRanges)
      return CannotConvert(absl::StrCat("its affine_map has more than ", kMaxMergedRanges, " runs"));
    std::vector<int64_t> index(outer, 0);
    for (int64_t left = elements / count; left > 0; --left) {
      ElementRun run = {piece.whole_offset, piece.slice_offset, count, rank};
      for (size_t i = 0; i < outer; ++i) {
        run.whole += index[i] * piece.whole_strides[i];
        run.slice += index[i] * piece.slice_strides[i];
      }
      runs_.push_back(run);
      Advance(piece.shape, index);
    }
    return absl::OkStatus();
  }

  static bool IsRun(const AffinePiece& piece, size_t dimension, int64_t count) {
    return piece.shape[dimension] == 1 ||
           (piece.whole_strides[dimension] == count && piece.slice_strides[dimension] == count);
  }

  static void Advance(const std::vector<int64_t>& shape, std::vector<int64_t>& index) {
    for (size_t i = index.size(); i-- > 0;) {
      if (++index[i] < shape[i]) return;
      index[i] = 0;
    }
  }

  // The runs from `first` on are those of a rank. They must make up its slice, each element once.
  absl::Status CheckSlice(size_t first, size_t rank, int64_t elements) {
    const auto begin = runs_.begin() + static_cast<std::ptrdiff_t>(first);
    std::sort(begin, runs_.end(), [](const auto& a, const auto& b) { return a.slice < b.slice; });
    int64_t end = 0;
    for (auto run = begin; run != runs_.end(); ++run) {
      if (run->slice != end) break;
      end += run->count;
    }
    if (end == elements) return absl::OkStatus();
    return CannotConvert(absl::StrCat("the pieces of rank ", rank,
                                      " in its affine_map do not make up its slice: element ", end, " of ",
                                      elements, " is in none of them, or in several"));
  }

  absl::Status Join() {
    std::sort(runs_.begin(), runs_.end(), [](const auto& a, const auto& b) {
      return std::tie(a.whole, a.rank) < std::tie(b.whole, b.rank);
    });
    std::vector<SliceCutter> cutters;
    for (const TpSlice& slice : slices_) cutters.emplace_back(slice.ranges);
    int64_t end = 0;
    const ElementRun* last = nullptr;
    for (const ElementRun& run : runs_) {
      if (run.whole < end) {
        CKPTD_RETURN_IF_ERROR(CheckCopy(*last, run));
        continue;
      }
      if (run.whole > end) break;
      cutters[run.rank].Append(run.slice * item_, run.count * item_, merged_);
      end += run.count;
      last = &run;
    }
    CKPTD_ASSIGN_OR_RETURN(const int64_t elements, Elements(map_.shape));
    if (end == elements) return absl::OkStatus();
    return CannotConvert(absl::StrCat("its affine_map leaves element ", end, " of ", elements,
                                      " to no rank: it cannot be put together"));
  }

  absl::Status CheckCopy(const ElementRun& last, const ElementRun& copy) const {
    if (last.whole != copy.whole || last.count != copy.count)
      return CannotConvert(absl::StrCat("its affine_map has pieces of the ranks ", last.rank, " and ",
                                        copy.rank, " that overlap at element ", copy.whole,
                                        ", and are no copies"));
    CKPTD_ASSIGN_OR_RETURN(const bool same, SameBytes({slices_[last.rank].ranges, last.slice * item_},
                                                      {slices_[copy.rank].ranges, copy.slice * item_},
                                                      copy.count * item_, read_));
    if (same) return absl::OkStatus();
    return CannotConvert(absl::StrCat("the ranks ", last.rank, " and ", copy.rank,
                                      " have copies from element ", copy.whole, " on, and these differ"));
  }

  const AffineMap& map_;
  const std::vector<TpSlice>& slices_;
  const int64_t item_;
  const ReadRange& read_;
  std::vector<ElementRun> runs_;
  std::vector<SourceRange> merged_;
};

}  // namespace

absl::StatusOr<AffineMap> ParseAffineMap(const ValueRef& value) {
  CKPTD_ASSIGN_OR_RETURN(const Dict* fields, ds::As<Dict>(value, kWhere, "a dict"));
  AffineMap map;
  CKPTD_ASSIGN_OR_RETURN(map.shape,
                         ds::Sizes(fields->Find("logical_shape"), "logical_shape of an affine_map"));
  CKPTD_ASSIGN_OR_RETURN(const int64_t elements, Elements(map.shape));
  CKPTD_ASSIGN_OR_RETURN(const Dict* ranks,
                         ds::As<Dict>(fields->Find("ranks"), "ranks of an affine_map", "a dict"));
  for (size_t rank = 0; rank < ranks->size(); ++rank) {
    CKPTD_ASSIGN_OR_RETURN(AffineMap::Slice slice,
                           ParseSlice(ranks->Find(static_cast<int64_t>(rank)), elements));
    map.slices.push_back(std::move(slice));
  }
  return map;
}

absl::StatusOr<std::vector<SourceRange>> MergeByMap(const AffineMap& map, const std::vector<TpSlice>& slices,
                                                    DataType dtype, const ReadRange& read) {
  return Merger(map, slices, dtype, read).Run();
}

}  // namespace ckptd
