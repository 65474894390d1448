#include "client/convert/nxd/zero_state.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/convert/files/value_text.h"
#include "client/convert/nxd/value_comparer.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

using torch::Dict;
using torch::Tensor;
using torch::Value;
using torch::ValueRef;
using Shape = std::vector<int64_t>;

constexpr char kBaseState[] = "base_state";
constexpr char kShapeInfo[] = "shape_info";
constexpr char kMasterWeights[] = "sharded_master_weights";
constexpr int64_t kLargestDimension = int64_t{1} << 48;
constexpr char kExpertStates[] = "ep_base_state_offset";

int64_t RowsOfShard(int64_t rows, int64_t count) { return rows / count + (rows % count != 0 ? 1 : 0); }

int64_t BytesOfRow(const Tensor& tensor) {
  int64_t bytes = InfoOf(tensor.dtype).item_bytes;
  for (size_t i = 1; i < tensor.shape.size(); ++i) bytes *= tensor.shape[i];
  return bytes;
}

absl::Status CannotConvert(const std::string& why) {
  return MakeError(absl::StatusCode::kFailedPrecondition, "CANNOT_CONVERT", why);
}

absl::StatusOr<Shape> ParseShape(const Value& value, const std::string& where) {
  Shape shape;
  if (const auto* size = value.As<torch::Size>()) {
    shape = size->dimensions;
  } else {
    const auto* list = value.As<torch::List>();
    const auto* tuple = value.As<torch::Tuple>();
    if (list == nullptr && tuple == nullptr)
      return CannotConvert(absl::StrCat(where, " is ", ValueText(value), ", not a shape"));
    for (const ValueRef& item : list != nullptr ? list->items : tuple->items) {
      const auto* number = item->As<int64_t>();
      if (number == nullptr)
        return CannotConvert(absl::StrCat(where, " holds ", ValueText(*item), ", not a number"));
      shape.push_back(*number);
    }
  }
  if (std::any_of(shape.begin(), shape.end(), [](int64_t n) { return n < 0 || n > kLargestDimension; }))
    return CannotConvert(absl::StrCat(where, " is ", ShapeText(shape)));
  return shape;
}

}  // namespace

class Merger {
 public:
  Merger(FileSystem& fs, Handle tag, NxdStates states, bool from_full)
      : same_(fs, tag, state_.states_), from_full_(from_full) {
    state_.states_ = std::move(states);
  }

  absl::StatusOr<ZeroState> Merge(bool to_full) {
    const std::vector<ValueRef>& ranks = state_.states_.ranks;
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      const Dict* root = ranks[rank]->As<Dict>();
      const ValueRef base = root != nullptr ? root->Find(kBaseState) : nullptr;
      const ValueRef shapes = root != nullptr ? root->Find(kShapeInfo) : nullptr;
      if (base == nullptr || shapes == nullptr || base->As<Dict>() == nullptr ||
          shapes->As<Dict>() == nullptr) {
        return MakeError(
            absl::StatusCode::kNotFound, "NO_OPTIMIZER_STATE",
            absl::StrCat("the state of ", NameOf(rank),
                         " has no base_state with a shape_info: it is not a ZeRO-1 state, so it is not "
                         "sharded, and there is nothing to convert"));
      }
      roots_.push_back(root);
    }
    CKPTD_RETURN_IF_ERROR(CheckKeys(roots_, ""));
    shapes_ = roots_[0]->Find(kShapeInfo)->As<Dict>();
    CKPTD_RETURN_IF_ERROR(CheckExperts(to_full));
    Dict merged = *roots_[0];
    for (size_t i = 0; i < merged.size(); ++i) {
      const auto& [key, value] = roots_[0]->entries()[i];
      const std::string name = key->As<std::string>() != nullptr ? *key->As<std::string>() : "";
      const std::vector<ValueRef> all = OfAllRanks(*key);
      if (name == kBaseState || name == kMasterWeights) {
        CKPTD_ASSIGN_OR_RETURN(ValueRef states, MergeById(all, name));
        merged.Replace(i, std::move(states));
      } else {
        CKPTD_RETURN_IF_ERROR(KeepUnsharded(all, name.empty() ? KeyText(*key) : name));
      }
    }
    state_.merged_ = torch::Make(std::move(merged));
    return std::move(state_);
  }

 private:
  std::string NameOf(size_t rank) const {
    return from_full_ ? "the merged file" : absl::StrCat("dp rank ", rank);
  }

  std::vector<ValueRef> OfAllRanks(const Value& key) const {
    std::vector<ValueRef> all;
    for (const Dict* root : roots_) all.push_back(root->Find(key));
    return all;
  }

  // Checks that all dicts have the keys of the first.
  absl::Status CheckKeys(const std::vector<const Dict*>& dicts, const std::string& where) const {
    for (size_t rank = 1; rank < dicts.size(); ++rank) {
      for (const auto& [lacking, having] :
           {std::pair<size_t, size_t>(0, rank), std::pair<size_t, size_t>(rank, 0)}) {
        for (const auto& [key, value] : dicts[having]->entries()) {
          if (dicts[lacking]->Find(*key) != nullptr) continue;
          return CannotConvert(absl::StrCat(where, KeyText(*key), " is in the state of ", NameOf(having),
                                            " and not in that of ", NameOf(lacking),
                                            ": the files are not of one save"));
        }
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<const Dict*>> AsDicts(const std::vector<ValueRef>& values,
                                                   const std::string& where) const {
    std::vector<const Dict*> dicts;
    for (size_t rank = 0; rank < values.size(); ++rank) {
      dicts.push_back(values[rank]->As<Dict>());
      if (dicts.back() == nullptr)
        return CannotConvert(
            absl::StrCat(where, " of ", NameOf(rank), " is ", ValueText(*values[rank]), ", not a dict"));
    }
    CKPTD_RETURN_IF_ERROR(CheckKeys(dicts, where));
    return dicts;
  }

  // Merges a dict {id: state}, where a state is a tensor or a dict of tensors.
  absl::StatusOr<ValueRef> MergeById(const std::vector<ValueRef>& ranks, const std::string& name) {
    CKPTD_ASSIGN_OR_RETURN(const std::vector<const Dict*> dicts, AsDicts(ranks, name));
    Dict merged = *dicts[0];
    for (size_t i = 0; i < merged.size(); ++i) {
      const Value& id = *dicts[0]->entries()[i].first;
      const std::string where = name + KeyText(id);
      const ValueRef shape_value = shapes_->Find(id);
      if (shape_value == nullptr)
        return CannotConvert(absl::StrCat("shape_info has no shape for ", where, ": the state is damaged"));
      CKPTD_ASSIGN_OR_RETURN(const Shape shape,
                             ParseShape(*shape_value, absl::StrCat(kShapeInfo, KeyText(id))));
      std::vector<ValueRef> all;
      for (const Dict* dict : dicts) all.push_back(dict->Find(id));
      CKPTD_ASSIGN_OR_RETURN(ValueRef one, OneState(all, shape, where, false));
      merged.Replace(i, std::move(one));
    }
    return torch::Make(std::move(merged));
  }

  absl::StatusOr<ValueRef> OneState(const std::vector<ValueRef>& ranks, const Shape& shape,
                                    const std::string& where, bool is_step) {
    const Value& first = *ranks[0];
    if (first.As<Dict>() != nullptr) {
      CKPTD_ASSIGN_OR_RETURN(const std::vector<const Dict*> dicts, AsDicts(ranks, where));
      Dict merged = *dicts[0];
      for (size_t i = 0; i < merged.size(); ++i) {
        const Value& key = *dicts[0]->entries()[i].first;
        const auto* name = key.As<std::string>();
        std::vector<ValueRef> all;
        for (const Dict* dict : dicts) all.push_back(dict->Find(key));
        CKPTD_ASSIGN_OR_RETURN(
            ValueRef one, OneState(all, shape, where + KeyText(key), name != nullptr && *name == "step"));
        merged.Replace(i, std::move(one));
      }
      return torch::Make(std::move(merged));
    }
    const auto* tensor = first.As<Tensor>();
    if (tensor != nullptr && !tensor->shape.empty() && !is_step) return MergeShards(ranks, shape, where);
    if (HoldsTensors(first) && tensor == nullptr) {
      return CannotConvert(absl::StrCat(where, " is ", ValueText(first),
                                        " that holds tensors, and nothing says how they are sharded"));
    }
    CKPTD_RETURN_IF_ERROR(KeepUnsharded(ranks, where));
    return ranks[0];
  }

  static bool HoldsTensors(const Value& value) {
    if (value.As<Tensor>() != nullptr) return true;
    const auto* list = value.As<torch::List>();
    const auto* tuple = value.As<torch::Tuple>();
    const auto any = [](const std::vector<ValueRef>& items) {
      return std::any_of(items.begin(), items.end(),
                         [](const ValueRef& item) { return HoldsTensors(*item); });
    };
    return (list != nullptr && any(list->items)) || (tuple != nullptr && any(tuple->items));
  }

  // Merges a tensor that is sharded along dimension 0.
  absl::StatusOr<ValueRef> MergeShards(const std::vector<ValueRef>& ranks, const Shape& shape,
                                       const std::string& where) {
    const auto count = static_cast<int64_t>(ranks.size());
    ZeroState::Sharded sharded;
    Shape expected = shape;
    if (!expected.empty()) expected[0] = RowsOfShard(shape[0], count);
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      const auto* tensor = ranks[rank]->As<Tensor>();
      if (tensor == nullptr) {
        return CannotConvert(absl::StrCat(where, " is ", ValueText(*ranks[0]), " on ", NameOf(0), " and ",
                                          ValueText(*ranks[rank]), " on ", NameOf(rank)));
      }
      if (tensor->shape != expected || tensor->dtype != ranks[0]->As<Tensor>()->dtype) {
        return CannotConvert(
            absl::StrCat(where, " of ", NameOf(rank), " is ", ValueText(*ranks[rank]), "; one of ", count,
                         count == 1 ? " shard" : " shards", " of a parameter ", ShapeText(shape), " is ",
                         ShapeText(expected),
                         " of one dtype: it is sharded in a way that ckptd does not know "
                         "(experts? an optimizer whose states have shapes of their own?), so "
                         "nothing is converted"));
      }
      if (!tensor->is_contiguous() || tensor->math_bits != nullptr) {
        return CannotConvert(
            absl::StrCat(where, " of ", NameOf(rank), " has strides ", ShapeText(tensor->stride),
                         " or a lazy conjugate or negation: only contiguous tensors can be cut; load it, and "
                         "save it with .contiguous()"));
      }
      sharded.shards.push_back(tensor);
      sharded.expert |= state_.states_.expert.contains(tensor->storage.get());
    }
    sharded.like = *sharded.shards[0];
    sharded.like.shape = shape;
    ValueRef place = torch::Make(torch::None{});
    state_.sharded_.emplace(place.get(), std::move(sharded));
    return place;
  }

  // Keeps what is not sharded: it must be equal on all ranks, and is taken from the first.
  absl::Status KeepUnsharded(const std::vector<ValueRef>& ranks, const std::string& where) {
    for (size_t rank = 1; rank < ranks.size(); ++rank) {
      CKPTD_ASSIGN_OR_RETURN(const std::string difference, same_.Difference(*ranks[0], *ranks[rank], where));
      if (difference.empty()) continue;
      return CannotConvert(
          absl::StrCat(difference, " on ", NameOf(0), " and ", NameOf(rank),
                       ": what is not sharded must be equal on all ranks of a group, so these files are not "
                       "of one save, or not of ZeRO-1"));
    }
    return KeepTensors(*ranks[0]);
  }

  // Gives each tensor a storage of exactly its own size, where possible.
  absl::Status KeepTensors(Value& value) {
    if (!kept_.insert(&value).second) return absl::OkStatus();
    if (auto* tensor = value.As<Tensor>()) {
      const torch::StorageRef old = tensor->storage;
      const int input = state_.states_.input_of.at(old.get());
      if (tensor->is_contiguous()) {
        const int64_t from = tensor->file_offset();
        Tensor own = torch::NewTensor(tensor->dtype, tensor->shape);
        own.storage->file_offset = from;
        // The old storage may also be held by what is sharded, which reads from there.
        state_.states_.input_of[own.storage.get()] = input;
        state_.states_.storages.push_back(own.storage);
        tensor->storage = own.storage;
        tensor->stride = own.stride;
        tensor->offset = 0;
        state_.kept_[own.storage.get()] = {{input, from, own.storage->bytes}};
      } else {
        state_.kept_[old.get()] = {{input, old->file_offset, old->bytes}};
      }
      if (state_.states_.expert.contains(old.get())) state_.kept_expert_.insert(tensor->storage.get());
    } else if (auto* bare = value.As<torch::BareStorage>()) {
      state_.kept_[bare->storage.get()] = {{state_.states_.input_of.at(bare->storage.get()),
                                            bare->storage->file_offset, bare->storage->bytes}};
    } else if (auto* list = value.As<torch::List>()) {
      for (const ValueRef& item : list->items) CKPTD_RETURN_IF_ERROR(KeepTensors(*item));
    } else if (auto* tuple = value.As<torch::Tuple>()) {
      for (const ValueRef& item : tuple->items) CKPTD_RETURN_IF_ERROR(KeepTensors(*item));
    } else if (auto* dict = value.As<Dict>()) {
      for (const auto& entry : dict->entries()) CKPTD_RETURN_IF_ERROR(KeepTensors(*entry.second));
    } else if (auto* object = value.As<torch::Object>()) {
      for (const ValueRef& part : {object->arguments, object->state}) {
        if (part != nullptr) CKPTD_RETURN_IF_ERROR(KeepTensors(*part));
      }
      for (const ValueRef& item : object->items) CKPTD_RETURN_IF_ERROR(KeepTensors(*item));
      for (const auto& entry : object->entries) CKPTD_RETURN_IF_ERROR(KeepTensors(*entry.second));
    }
    return absl::OkStatus();
  }

  // The files' names do not say whose experts they hold. Where experts are sharded over all data-parallel
  // ranks, as everything else is, there is only one set of them, and nothing is lost.
  absl::Status CheckExperts(bool to_full) const {
    const ValueRef offset_value = roots_[0]->Find(kExpertStates);
    if (offset_value == nullptr) return absl::OkStatus();
    const auto* offset = offset_value->As<int64_t>();
    const std::string what =
        absl::StrCat("the state has experts (", kExpertStates, " is ", ValueText(*offset_value), ")");
    if (offset == nullptr) return CannotConvert(absl::StrCat(what, ", but not from which id on"));
    const auto count = static_cast<int64_t>(roots_.size());
    std::set<int64_t> over;  // The numbers of ranks that each expert may be sharded over.
    for (int64_t n = 1; n <= count; ++n) {
      if (count % n == 0) over.insert(n);
    }
    bool any = false;
    for (const auto& [key, entry] : roots_[0]->Find(kBaseState)->As<Dict>()->entries()) {
      const auto* id = key->As<int64_t>();
      const Dict* states = entry->As<Dict>();
      const ValueRef shape_value = shapes_->Find(*key);
      if (id == nullptr || *id < *offset || states == nullptr || shape_value == nullptr) continue;
      any = true;
      CKPTD_ASSIGN_OR_RETURN(const Shape shape,
                             ParseShape(*shape_value, absl::StrCat(kShapeInfo, KeyText(*key))));
      for (const auto& [name, value] : states->entries()) {
        const auto* tensor = value->As<Tensor>();
        if (tensor == nullptr || tensor->shape.empty() || shape.empty()) continue;
        const int64_t rows = tensor->shape[0];
        std::erase_if(over, [&](int64_t n) { return RowsOfShard(shape[0], n) != rows; });
      }
    }
    if (!any) return absl::OkStatus();
    if (from_full_ || to_full) {
      return CannotConvert(
          absl::StrCat(what,
                       ", and a merged state can hold those of only one expert-parallel rank: "
                       "the others would be lost. Convert from sharded to sharded"));
    }
    if (over == std::set<int64_t>{count}) return absl::OkStatus();
    return CannotConvert(absl::StrCat(
        what, ", and they are not sharded over all ", count,
        " data-parallel ranks (or it cannot be told): the files of different expert-parallel ranks hold "
        "different experts, and their names do not say which. Load it with the numbers of ranks that saved "
        "it"));
  }

  ZeroState state_;
  ValueComparer same_;
  const bool from_full_;
  std::vector<const Dict*> roots_;
  const Dict* shapes_ = nullptr;
  std::unordered_set<const Value*> kept_;
};

absl::StatusOr<ZeroState> ZeroState::Merge(FileSystem& fs, Handle tag, NxdStates states, bool from_full,
                                           bool to_full) {
  return Merger(fs, tag, std::move(states), from_full).Merge(to_full);
}

ZeroShard ZeroState::Shard(int index, int count) const {
  ZeroShard shard;
  shard.contents = kept_;
  shard.expert = kept_expert_;
  shard.root = Rebuild(merged_, index, count, shard);
  return shard;
}

// Copies the dicts on the path to sharded tensors; all shards share the rest. Sharded tensors are only in
// dicts.
torch::ValueRef ZeroState::Rebuild(const ValueRef& value, int index, int count, ZeroShard& shard) const {
  const auto sharded = sharded_.find(value.get());
  if (sharded != sharded_.end()) return Cut(sharded->second, index, count, shard);
  const auto* dict = value->As<Dict>();
  if (dict == nullptr) return value;
  Dict copy = *dict;
  for (size_t i = 0; i < copy.size(); ++i)
    copy.Replace(i, Rebuild(dict->entries()[i].second, index, count, shard));
  return torch::Make(std::move(copy));
}

torch::ValueRef ZeroState::Cut(const Sharded& sharded, int index, int count, ZeroShard& shard) const {
  const int64_t rows = sharded.like.shape[0];
  const int64_t rows_of_input = sharded.shards[0]->shape[0];
  Shape shape = sharded.like.shape;
  shape[0] = RowsOfShard(rows, count);
  const int64_t first = shape[0] * index;
  const int64_t end = std::min(rows, first + shape[0]);
  Tensor tensor = torch::NewTensor(sharded.like.dtype, std::move(shape));
  tensor.requires_grad = sharded.like.requires_grad;
  tensor.parameter = sharded.like.parameter;
  tensor.attributes = sharded.like.attributes;
  const int64_t row_bytes = BytesOfRow(tensor);
  std::vector<SourceRange>& ranges = shard.contents[tensor.storage.get()];
  for (int64_t row = first; row < end && row_bytes > 0;) {
    const int64_t from_shard = row / rows_of_input;
    const int64_t within = row % rows_of_input;
    const int64_t now = std::min(end - row, rows_of_input - within);
    const Tensor& source = *sharded.shards[static_cast<size_t>(from_shard)];
    ranges.push_back({states_.input_of.at(source.storage.get()), source.file_offset() + within * row_bytes,
                      now * row_bytes});
    row += now;
  }
  if (sharded.expert) shard.expert.insert(tensor.storage.get());
  return torch::Make(std::move(tensor));
}

}  // namespace ckptd
