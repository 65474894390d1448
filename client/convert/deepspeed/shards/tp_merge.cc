#include "client/convert/deepspeed/shards/tp_merge.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/convert/deepspeed/state/affine_map.h"
#include "client/convert/files/convert_error.h"
#include "client/convert/files/value_text.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

using torch::Dict;
using torch::ValueRef;

constexpr int64_t kMaxAveraged = int64_t{64} << 20;  // Bytes of an averaged tensor, which is in memory.

int64_t Product(const std::vector<int64_t>& shape, size_t first, size_t end) {
  return std::accumulate(shape.begin() + static_cast<std::ptrdiff_t>(first),
                         shape.begin() + static_cast<std::ptrdiff_t>(end), int64_t{1}, std::multiplies<>());
}
int64_t Elements(const std::vector<int64_t>& shape) { return Product(shape, 0, shape.size()); }

int64_t BytesOf(const std::vector<SourceRange>& ranges) {
  int64_t bytes = 0;
  for (const SourceRange& range : ranges) bytes += range.size;
  return bytes;
}

// A part of a slice along the dimension in which slices are joined.
struct Part {
  size_t rank;
  int64_t first, count;
};

class Merger {
 public:
  Merger(const TpRule& rule, const std::vector<TpSlice>& slices, DataType dtype, const ReadRange& read)
      : rule_(rule), slices_(slices), item_(InfoOf(dtype).item_bytes), dtype_(dtype), read_(read) {}

  absl::StatusOr<MergedTensor> Run() {
    switch (rule_.kind) {
      case TpRule::Kind::kReplicated:
        CKPTD_RETURN_IF_ERROR(Replicated());
        break;
      case TpRule::Kind::kAverage:
        CKPTD_RETURN_IF_ERROR(Average());
        break;
      case TpRule::Kind::kTwoSubParams:
        CKPTD_RETURN_IF_ERROR(TwoSubParams());
        break;
      case TpRule::Kind::kSubParams:
        CKPTD_RETURN_IF_ERROR(JoinSubParams());
        break;
      case TpRule::Kind::kConcatenate:
        CKPTD_RETURN_IF_ERROR(Concatenate());
        break;
      case TpRule::Kind::kMapped:
        CKPTD_RETURN_IF_ERROR(Mapped());
        break;
    }
    CKPTD_RETURN_IF_ERROR(CutVocabulary());
    return std::move(merged_);
  }

 private:
  absl::Status CheckSameShapes() const {
    for (const TpSlice& slice : slices_) {
      if (slice.shape == slices_.front().shape) continue;
      return CannotConvert(absl::StrCat("tensor-parallel ranks have it as ", ShapeText(slices_.front().shape),
                                        " and ", ShapeText(slice.shape)));
    }
    return absl::OkStatus();
  }

  absl::Status Replicated() {
    CKPTD_RETURN_IF_ERROR(CheckSameShapes());
    merged_.shape = slices_.front().shape;
    merged_.ranges = slices_.front().ranges;
    const int64_t bytes = Elements(merged_.shape) * item_;
    for (size_t rank = 1; rank < slices_.size(); ++rank) {
      CKPTD_ASSIGN_OR_RETURN(const bool same,
                             SameBytes({slices_.front().ranges}, {slices_[rank].ranges}, bytes, read_));
      if (!same)
        return CannotConvert(
            absl::StrCat("it is replicated, and differs between the tensor-parallel ranks 0 and ", rank));
    }
    return absl::OkStatus();
  }

  // Reads bytes of a slice.
  // The sum, from the first rank on and from 0, divided by their number: as Python computes it.
  absl::Status Average() {
    CKPTD_RETURN_IF_ERROR(CheckSameShapes());
    const int64_t bytes = Elements(slices_.front().shape) * item_;
    if (dtype_ != DataType::kFloat32 || bytes > kMaxAveraged) {
      return CannotConvert(absl::StrCat("it is to be averaged, and is ",
                                        std::string(InfoOf(dtype_).torch_name), " of ", bytes,
                                        " bytes; ckptd averages float32 up to ", kMaxAveraged));
    }
    std::vector<float> sum(static_cast<size_t>(bytes / item_), 0.0F), one(sum.size());
    std::vector<std::byte> read;
    for (const TpSlice& slice : slices_) {
      CKPTD_RETURN_IF_ERROR(ReadSlice(slice.ranges, 0, bytes, read_, read));
      std::memcpy(one.data(), read.data(), read.size());
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += one[i];
    }
    for (float& value : sum) value /= static_cast<float>(slices_.size());
    merged_.shape = slices_.front().shape;
    merged_.literals.assign(reinterpret_cast<const char*>(sum.data()), static_cast<size_t>(bytes));
    merged_.ranges = {{Piece::kLiteral, 0, bytes}};
    return absl::OkStatus();
  }

  absl::Status Concatenate() {
    std::vector<Part> parts;
    std::vector<std::vector<int64_t>> shapes;
    for (size_t rank = 0; rank < slices_.size(); ++rank) {
      shapes.push_back(slices_[rank].shape);
      // DeepSpeed neither concatenates nor loads a tensor without dimensions, and loads one of one element
      // for it.
      if (shapes.back().empty() && slices_.size() == 1) shapes.back() = {1};
      if (rule_.dimension >= shapes.back().size())
        return CannotConvert(absl::StrCat("it is cut along dimension ", rule_.dimension, ", and is ",
                                          ShapeText(shapes.back())));
      parts.push_back({rank, 0, shapes.back()[rule_.dimension]});
    }
    merged_.notes.Set("cat_dim", torch::MakeInt(static_cast<int64_t>(rule_.dimension)));
    return Join(shapes, rule_.dimension, parts);
  }

  // Each slice has a part of the first, then a part of the second sub-parameter.
  absl::Status TwoSubParams() {
    std::vector<Part> parts;
    std::vector<std::vector<int64_t>> shapes;
    for (const TpSlice& slice : slices_) {
      shapes.push_back(slice.shape);
      if (slice.shape.empty() || slice.shape.front() < 2)
        return CannotConvert(absl::StrCat("it has two sub-parameters, and is ", ShapeText(slice.shape)));
    }
    for (const bool second : {false, true}) {
      for (size_t rank = 0; rank < slices_.size(); ++rank) {
        const int64_t rows = shapes[rank].front(), half = (rows + 1) / 2;  // As torch.chunk.
        parts.push_back(second ? Part{rank, half, rows - half} : Part{rank, 0, half});
      }
    }
    merged_.notes.Set("cat_dim", torch::MakeInt(0));
    merged_.notes.Set("param_n_sub_params", torch::MakeInt(2));
    return Join(shapes, 0, parts);
  }

  absl::Status Mapped() {
    merged_.shape = rule_.map->shape;
    CKPTD_ASSIGN_OR_RETURN(merged_.ranges, MergeByMap(*rule_.map, slices_, dtype_, read_));
    if (!rule_.experts) return absl::OkStatus();
    merged_.notes.Set("param", torch::Make(torch::None()));  // To be the first; the caller sets it.
    merged_.notes.Set("cat_dim", torch::MakeInt(0));
    merged_.notes.Set("is_expert_param", torch::Make<bool>(true));
    merged_.notes.Set("ep_num_experts", torch::MakeInt(*rule_.experts));
    return absl::OkStatus();
  }

  // Puts parts of the slices, seen as `shapes`, one after the other along `dimension`.
  absl::Status Join(const std::vector<std::vector<int64_t>>& shapes, size_t dimension,
                    const std::vector<Part>& parts) {
    merged_.shape = shapes.front();
    merged_.shape[dimension] = 0;
    for (size_t rank = 0; rank < shapes.size(); ++rank) {
      std::vector<int64_t> rest = shapes[rank];
      merged_.shape[dimension] += rest[dimension];
      rest[dimension] = shapes.front()[dimension];
      if (rest != shapes.front())
        return CannotConvert(absl::StrCat("tensor-parallel ranks have it as ", ShapeText(shapes.front()),
                                          " and ", ShapeText(shapes[rank])));
    }
    const int64_t outer = Product(merged_.shape, 0, dimension);
    const int64_t inner = Product(merged_.shape, dimension + 1, merged_.shape.size()) * item_;
    std::vector<SliceCutter> cutters;
    for (const TpSlice& slice : slices_) cutters.emplace_back(slice.ranges);
    for (int64_t row = 0; row < outer; ++row) {
      for (const Part& part : parts) {
        const int64_t of_row = shapes[part.rank][dimension] * inner;
        cutters[part.rank].Append(row * of_row + part.first * inner, part.count * inner, merged_.ranges);
      }
      if (merged_.ranges.size() > kMaxMergedRanges)
        return CannotConvert(absl::StrCat("it is ", ShapeText(merged_.shape), ", joined of more than ",
                                          kMaxMergedRanges, " pieces"));
    }
    return absl::OkStatus();
  }

  absl::Status JoinSubParams() {
    const SubParams& subs = *rule_.subs;
    CKPTD_ASSIGN_OR_RETURN(const std::vector<int64_t> sizes, SubSizes(subs));
    CKPTD_ASSIGN_OR_RETURN(const auto widths, SubWidths(subs, sizes));
    CKPTD_ASSIGN_OR_RETURN(const std::vector<int64_t> logical, LogicalShape(subs, sizes));
    std::vector<std::vector<int64_t>> shapes;
    for (size_t rank = 0; rank < slices_.size(); ++rank) {
      std::vector<int64_t>& shape = shapes.emplace_back(logical);
      shape[subs.dimension] = 0;
      for (const std::vector<int64_t>& of_sub : widths) shape[subs.dimension] += of_sub[rank];
      if (Elements(shape) != Elements(slices_[rank].shape))
        return CannotConvert(absl::StrCat("tensor-parallel rank ", rank, " has it as ",
                                          ShapeText(slices_[rank].shape), ", and its widths say ",
                                          ShapeText(shape)));
    }
    std::vector<Part> parts;
    std::vector<int64_t> begun(slices_.size(), 0);
    for (const std::vector<int64_t>& of_sub : widths) {
      for (size_t rank = 0; rank < slices_.size(); ++rank) {
        parts.push_back({rank, begun[rank], of_sub[rank]});
        begun[rank] += of_sub[rank];
      }
    }
    merged_.notes.Set("sub_param_shape", ShapeNote(subs, sizes));
    return Join(shapes, subs.dimension, parts);
  }

  // Along the dimension that is cut. Before version 0.4 only their number may be known: then they are equal.
  absl::StatusOr<std::vector<int64_t>> SubSizes(const SubParams& subs) const {
    if (!subs.sizes.empty()) return subs.sizes;
    int64_t whole = 0;
    for (const TpSlice& slice : slices_) {
      if (slice.shape.size() <= subs.dimension)
        return CannotConvert(absl::StrCat("it has sub-parameters along dimension ", subs.dimension,
                                          ", and is ", ShapeText(slice.shape)));
      whole += slice.shape[subs.dimension];
    }
    if (whole % subs.count != 0)
      return CannotConvert(absl::StrCat(whole, " rows are not ", subs.count, " equal sub-parameters"));
    return std::vector<int64_t>(static_cast<size_t>(subs.count), whole / subs.count);
  }

  // {sub-parameter: {rank: its size there}}
  absl::StatusOr<std::vector<std::vector<int64_t>>> SubWidths(const SubParams& subs,
                                                              const std::vector<int64_t>& sizes) const {
    std::vector<std::vector<int64_t>> widths;
    const auto ranks = static_cast<int64_t>(slices_.size());
    if (subs.widths) {
      widths = *subs.widths;
    } else {
      for (const int64_t size : sizes) {
        if (size % ranks != 0)
          return CannotConvert(absl::StrCat("a sub-parameter of ", size, " rows is cut over ", ranks,
                                            " ranks, and nothing says how"));
        widths.emplace_back(slices_.size(), size / ranks);
      }
    }
    bool fits = widths.size() == sizes.size();
    for (size_t i = 0; fits && i < sizes.size(); ++i) {
      fits = widths[i].size() == slices_.size() &&
             std::accumulate(widths[i].begin(), widths[i].end(), int64_t{0}) == sizes[i];
    }
    if (!fits) return CannotConvert("its sub_param_shard_widths do not add up to its sub-parameters");
    return widths;
  }

  absl::StatusOr<std::vector<int64_t>> LogicalShape(const SubParams& subs,
                                                    const std::vector<int64_t>& sizes) const {
    std::vector<int64_t> shape = subs.logical_shape;
    shape[subs.dimension] = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
    int64_t elements = 0, known = 1;
    for (const TpSlice& slice : slices_) elements += Elements(slice.shape);
    int64_t* open = nullptr;
    for (int64_t& size : shape) {
      if (size >= 0) {
        known *= size;
      } else if (open != nullptr) {
        return CannotConvert("the shape of its sub-parameters has two open dimensions");
      } else {
        open = &size;
      }
    }
    if (open != nullptr && (known == 0 || elements % known != 0))
      return CannotConvert(
          absl::StrCat("the shape of its sub-parameters does not fit ", elements, " elements"));
    if (open != nullptr) *open = elements / known;
    return shape;
  }

  // An object of DeepSpeed's class SubparamShape, with the sizes in place of their number.
  static ValueRef ShapeNote(const SubParams& subs, const std::vector<int64_t>& sizes) {
    ValueRef shape = subs.shape;
    if (subs.sizes.empty()) {
      const auto* list = subs.shape->As<torch::List>();
      torch::Tuple normal{list != nullptr ? list->items : subs.shape->As<torch::Tuple>()->items};
      torch::Tuple of_subs;
      for (const int64_t size : sizes) of_subs.items.push_back(torch::MakeInt(size));
      normal.items[subs.dimension] = torch::Make(std::move(of_subs));
      shape = torch::Make(std::move(normal));
    }
    Dict fields;
    fields.Set("patterns", subs.patterns);
    fields.Set("shape", shape);
    fields.Set("partition_dim", torch::MakeInt(static_cast<int64_t>(subs.dimension)));
    torch::Object object;
    object.callable = {"deepspeed.checkpoint.universal_checkpoint", "SubparamShape"};
    object.by_new = true;
    object.arguments = torch::Make(torch::Tuple());
    object.state = torch::Make(std::move(fields));
    return torch::Make(std::move(object));
  }

  absl::Status CutVocabulary() {
    if (!rule_.vocabulary) return absl::OkStatus();
    if (merged_.shape.size() < 2)
      return CannotConvert(absl::StrCat("it is a vocabulary's, and is ", ShapeText(merged_.shape)));
    merged_.notes.Set("vocab_tensor", torch::Make<bool>(true));
    if (*rule_.vocabulary >= merged_.shape.front()) return absl::OkStatus();
    merged_.shape.front() = *rule_.vocabulary;
    int64_t left = Elements(merged_.shape) * item_;
    std::vector<SourceRange> kept;
    for (SourceRange range : merged_.ranges) {
      range.size = std::min(range.size, left);
      left -= range.size;
      if (range.size > 0) kept.push_back(range);
    }
    merged_.ranges = std::move(kept);
    return absl::OkStatus();
  }

  const TpRule& rule_;
  const std::vector<TpSlice>& slices_;
  const int64_t item_;
  const DataType dtype_;
  const ReadRange& read_;
  MergedTensor merged_;
};

}  // namespace

absl::StatusOr<MergedTensor> MergeTpSlices(const TpRule& rule, const std::vector<TpSlice>& slices,
                                           DataType dtype, const ReadRange& read) {
  for (const TpSlice& slice : slices) {
    const int64_t needed = Elements(slice.shape) * InfoOf(dtype).item_bytes;
    if (BytesOf(slice.ranges) == needed) continue;
    return CannotConvert(absl::StrCat("a rank has it as ", ShapeText(slice.shape), ", ", needed,
                                      " bytes, and its fragments have ", BytesOf(slice.ranges),
                                      ": the files are not of one save"));
  }
  return Merger(rule, slices, dtype, read).Run();
}

}  // namespace ckptd
