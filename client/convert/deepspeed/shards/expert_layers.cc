#include "client/convert/deepspeed/shards/expert_layers.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/convert/deepspeed/state/affine_map.h"
#include "client/convert/deepspeed/state/ds_value.h"
#include "client/convert/files/convert_error.h"
#include "client/convert/files/value_text.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

using torch::Dict;
using torch::ValueRef;

constexpr char kLayers[] = "ds_autoep_layers", kOlderLayers[] = "autoep_layers";
constexpr char kPrefix[] = "expert_key_prefix";
constexpr char kPlacement[] = "expert_placement";
// Each takes memory, and a few bytes of a file can claim any number.
constexpr int64_t kMostExperts = 1 << 16;

bool IsNone(const ValueRef& value) { return value == nullptr || value->As<torch::None>() != nullptr; }

absl::StatusOr<int64_t> Count(const Dict& dict, std::string_view key, int64_t least) {
  CKPTD_ASSIGN_OR_RETURN(const int64_t count, ds::Integer(dict.Find(key), key));
  if (count >= least && count <= kMostExperts) return count;
  return CannotConvert(
      absl::StrCat(std::string(key), " is ", count, "; expected ", least, " to ", kMostExperts));
}

// ---- Places ----

// Without a placement each rank has as many experts as the others, in order.
absl::StatusOr<std::vector<std::vector<int64_t>>> EvenPlaces(int64_t experts, int64_t ranks,
                                                             int64_t of_each) {
  if (of_each * ranks != experts)
    return CannotConvert(absl::StrCat("num_local_experts ", of_each, " times ep_size ", ranks,
                                      " is not num_experts, ", experts, ", and there is no ", kPlacement));
  std::vector<std::vector<int64_t>> places(static_cast<size_t>(ranks));
  for (int64_t expert = 0; expert < experts; ++expert)
    places[static_cast<size_t>(expert / of_each)].push_back(expert);
  return places;
}

absl::Status CheckExperts(const std::vector<int64_t>& of_rank, int64_t rank, int64_t experts) {
  std::set<int64_t> seen;
  for (const int64_t expert : of_rank) {
    if (expert < experts && seen.insert(expert).second) continue;
    return CannotConvert(absl::StrCat(kPlacement, " gives rank ", rank, " the expert ", expert, " of ",
                                      experts, expert < experts ? " twice" : ""));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::vector<int64_t>>> PlacesOf(const Dict& placement, int64_t experts,
                                                           int64_t ranks) {
  CKPTD_ASSIGN_OR_RETURN(const int64_t version,
                         ds::Integer(placement.Find("version"), "version of expert_placement"));
  CKPTD_ASSIGN_OR_RETURN(const int64_t of_all, ds::Integer(placement.Find("num_experts"), "num_experts"));
  CKPTD_ASSIGN_OR_RETURN(const int64_t size, ds::Integer(placement.Find("ep_size"), "ep_size"));
  CKPTD_ASSIGN_OR_RETURN(const std::vector<ValueRef>* items, ds::Items(placement.Find("ranks"), "ranks"));
  if (version != 1 || of_all != experts || size != ranks || static_cast<int64_t>(items->size()) != ranks)
    return CannotConvert(absl::StrCat(
        kPlacement, " is of version ", version, ", ", of_all, " experts, ep_size ", size, " and ",
        items->size(), " ranks; expected version 1, ", experts, " experts, and ep_size ", ranks));
  std::vector<std::vector<int64_t>> places(static_cast<size_t>(ranks));
  std::set<int64_t> seen, placed;
  for (const ValueRef& item : *items) {
    CKPTD_ASSIGN_OR_RETURN(const Dict* entry, ds::As<Dict>(item, kPlacement, "a dict for each rank"));
    CKPTD_ASSIGN_OR_RETURN(const int64_t rank, ds::Integer(entry->Find("rank"), "rank of expert_placement"));
    CKPTD_ASSIGN_OR_RETURN(std::vector<int64_t> of_rank, ds::Sizes(entry->Find("experts"), "experts"));
    if (rank < 0 || rank >= ranks || !seen.insert(rank).second)
      return CannotConvert(absl::StrCat(kPlacement, " has rank ", rank, " of ", ranks, ", or has it twice"));
    CKPTD_RETURN_IF_ERROR(CheckExperts(of_rank, rank, experts));
    placed.insert(of_rank.begin(), of_rank.end());
    places[static_cast<size_t>(rank)] = std::move(of_rank);
  }
  if (static_cast<int64_t>(placed.size()) == experts) return places;
  return CannotConvert(absl::StrCat(kPlacement, " places ", placed.size(), " of ", experts, " experts"));
}

absl::StatusOr<ExpertParam> ParsePlaces(const Dict& layer) {
  ExpertParam param;
  CKPTD_ASSIGN_OR_RETURN(param.experts, Count(layer, "num_experts", 1));
  CKPTD_ASSIGN_OR_RETURN(const int64_t ranks, Count(layer, "ep_size", 1));
  CKPTD_ASSIGN_OR_RETURN(const Dict* placement, ds::OptionalDict(layer.Find(kPlacement), kPlacement));
  CKPTD_ASSIGN_OR_RETURN(const int64_t of_each,
                         Count(layer, "num_local_experts", placement != nullptr ? 0 : 1));
  CKPTD_ASSIGN_OR_RETURN(param.of_rank, placement != nullptr ? PlacesOf(*placement, param.experts, ranks)
                                                             : EvenPlaces(param.experts, ranks, of_each));
  if (IsNone(layer.Find("ep_rank"))) return param;
  CKPTD_ASSIGN_OR_RETURN(param.own_rank, ds::Integer(layer.Find("ep_rank"), "ep_rank"));
  if (*param.own_rank < 0 || *param.own_rank >= ranks)
    return CannotConvert(absl::StrCat("ep_rank is ", *param.own_rank, " of ", ranks));
  return param;
}

// What the training program says itself of the places of a tensor's elements.
absl::StatusOr<ValueRef> StoredMap(const Dict& layer, const std::string& name) {
  CKPTD_ASSIGN_OR_RETURN(const Dict* maps, ds::OptionalDict(layer.Find("affine_maps"), "affine_maps"));
  if (maps == nullptr || maps->empty()) return ValueRef();
  CKPTD_ASSIGN_OR_RETURN(const int64_t version, ds::Integer(maps->Find("version"), "version of affine_maps"));
  if (version != 1) return CannotConvert(absl::StrCat("affine_maps is of version ", version, "; known is 1"));
  CKPTD_ASSIGN_OR_RETURN(const Dict* params,
                         ds::As<Dict>(maps->Find("params"), "params of affine_maps", "a dict"));
  const ValueRef found = params->Find(name);
  if (found == nullptr)
    return ds::Unexpected(absl::StrCat("the map of ", name, " in affine_maps"), nullptr, "a dict");
  return found;
}

// At stage 3, DeepSpeed also has a format in which experts are in files of their own, and cannot convert it.
absl::Status CheckStage3(const Dict& layer) {
  const ValueRef format = layer.Find("checkpoint_format");
  const auto* name = format != nullptr ? format->As<std::string>() : nullptr;
  if (name == nullptr || *name != "zero3_partitioned")
    return ds::Unexpected("checkpoint_format of a layer of experts", format.get(),
                          "zero3_partitioned at stage 3");
  CKPTD_ASSIGN_OR_RETURN(const int64_t version,
                         ds::Integer(layer.Find("checkpoint_format_version"), "checkpoint_format_version"));
  if (version != 1)
    return CannotConvert(absl::StrCat("checkpoint_format_version of experts is ", version, "; known is 1"));
  return ds::Integer(layer.Find("ep_rank"), "ep_rank").status();
}

// A block of the first dimension for each expert.
AffineMap MapOf(const ExpertParam& param, const std::vector<int64_t>& of_expert, int64_t elements) {
  AffineMap map;
  map.shape = of_expert;
  map.shape.insert(map.shape.begin(), param.experts);
  for (const std::vector<int64_t>& experts : param.of_rank) {
    AffineMap::Slice& slice = map.slices.emplace_back();
    slice.shape = of_expert;
    slice.shape.insert(slice.shape.begin(), static_cast<int64_t>(experts.size()));
    for (size_t i = 0; i < experts.size(); ++i)
      slice.pieces.push_back(
          {{elements}, experts[i] * elements, {1}, static_cast<int64_t>(i) * elements, {1}});
  }
  return map;
}

// The places of all elements by a map: merging slices that are runs of imaginary files gives them.
absl::StatusOr<std::vector<SourceRange>> PlacesBy(const AffineMap& map, const AffineMap& slices_of) {
  std::vector<TpSlice> slices;
  for (const AffineMap::Slice& slice : slices_of.slices) {
    int64_t elements = 1;
    for (const int64_t size : slice.shape) elements *= size;
    slices.push_back({slice.shape, {{static_cast<int>(slices.size()), 0, elements}}});
    if (elements == 0) slices.back().ranges.clear();
  }
  const auto equal = [](const SourceRange&, std::span<std::byte> into) {
    std::fill(into.begin(), into.end(), std::byte{0});
    return absl::OkStatus();
  };
  return MergeByMap(map, slices, DataType::kUInt8, equal);
}

absl::Status CheckStored(const ExpertParam& param, const AffineMap& map) {
  CKPTD_ASSIGN_OR_RETURN(const AffineMap stored, ParseAffineMap(param.stored_map));
  CKPTD_ASSIGN_OR_RETURN(const std::vector<SourceRange> wanted, PlacesBy(map, map));
  CKPTD_ASSIGN_OR_RETURN(const std::vector<SourceRange> found, PlacesBy(stored, map));
  const bool same = stored.shape == map.shape &&
                    std::equal(wanted.begin(), wanted.end(), found.begin(), found.end(),
                               [](const SourceRange& a, const SourceRange& b) {
                                 return a.input == b.input && a.from == b.from && a.size == b.size;
                               });
  if (same) return absl::OkStatus();
  return CannotConvert("its map in affine_maps is another one than expert_placement gives");
}

}  // namespace

absl::StatusOr<TpRule> ExpertParam::RuleFor(const std::vector<int64_t>& shape, size_t rank) const {
  if (shape.empty() || shape.front() != static_cast<int64_t>(of_rank[rank].size()))
    return CannotConvert(absl::StrCat("expert-parallel rank ", rank, " has it as ", ShapeText(shape),
                                      ", and has ", of_rank[rank].size(), " experts"));
  const std::vector<int64_t> of_expert(shape.begin() + 1, shape.end());
  int64_t elements = experts;
  for (const int64_t size : of_expert) {
    if (__builtin_mul_overflow(elements, size, &elements))
      return CannotConvert(absl::StrCat("it is impossibly large: ", experts, " experts, ", ShapeText(shape)));
  }
  TpRule rule;
  rule.kind = TpRule::Kind::kMapped;
  rule.experts = experts;
  rule.map = std::make_shared<const AffineMap>(MapOf(*this, of_expert, elements / experts));
  if (stored_map != nullptr) CKPTD_RETURN_IF_ERROR(CheckStored(*this, *rule.map));
  return rule;
}

size_t ExpertRanks::Of(int rank, size_t ranks) const {
  const size_t at = static_cast<size_t>(rank), count = static_cast<size_t>(data_parallel);
  return data_before_expert ? at / (count / ranks) : at % ranks;
}

absl::StatusOr<ExpertLayers> ExpertLayers::Parse(const Dict& root, bool stage3) {
  ExpertLayers layers;
  ValueRef value = root.Find(kLayers);
  if (IsNone(value)) value = root.Find(kOlderLayers);
  if (IsNone(value)) return layers;
  CKPTD_ASSIGN_OR_RETURN(const auto* items, ds::As<torch::List>(value, kLayers, "a list"));
  layers.description_ = value;
  for (const ValueRef& item : items->items) CKPTD_RETURN_IF_ERROR(layers.Add(item, stage3));
  return layers;
}

absl::Status ExpertLayers::Add(const ValueRef& item, bool stage3) {
  CKPTD_ASSIGN_OR_RETURN(const Dict* layer, ds::As<Dict>(item, kLayers, "dicts"));
  CKPTD_ASSIGN_OR_RETURN(const auto* prefix, ds::As<std::string>(layer->Find(kPrefix), kPrefix, "a name"));
  absl::StatusOr<ExpertParam> places = ParsePlaces(*layer);
  if (!places.ok()) return Annotate(places.status(), absl::StrCat("the layer ", *prefix));
  if (stage3) CKPTD_RETURN_IF_ERROR(CheckStage3(*layer));
  for (const char* weight : {".w1", ".w2", ".w3"}) {
    const std::string name = absl::StrCat(*prefix, weight);
    ExpertParam param = *places;
    // As ds_to_universal.py, which knows these maps only at stages 1 and 2.
    if (!stage3) {
      CKPTD_ASSIGN_OR_RETURN(param.stored_map, StoredMap(*layer, name));
    }
    if (!params_.try_emplace(name, std::move(param)).second)
      return CannotConvert(absl::StrCat(kLayers, " has the layer ", *prefix, " twice"));
  }
  return absl::OkStatus();
}

const ExpertParam* ExpertLayers::Find(const std::string& name) const {
  const auto found = params_.find(name);
  return found != params_.end() ? &found->second : nullptr;
}

absl::Status ExpertLayers::Merge(const ExpertLayers& other) {
  for (const auto& [name, param] : other.params_) {
    const auto [known, is_new] = params_.try_emplace(name, param);
    if (!is_new && !known->second.SamePlaces(param))
      return CannotConvert(absl::StrCat("two files place the experts of ", name, " differently"));
  }
  if (other.description_ == nullptr) return absl::OkStatus();
  torch::List all;
  if (description_ != nullptr) all = *description_->As<torch::List>();
  for (const ValueRef& item : other.description_->As<torch::List>()->items) {
    const ValueRef prefix = item->As<Dict>()->Find(kPrefix);
    const bool known = std::any_of(all.items.begin(), all.items.end(), [&](const ValueRef& one) {
      return *one->As<Dict>()->Find(kPrefix)->As<std::string>() == *prefix->As<std::string>();
    });
    if (!known) all.items.push_back(item);
  }
  description_ = torch::Make(std::move(all));
  return absl::OkStatus();
}

ValueRef ExpertLayers::ShortDescription() const {
  torch::List all;
  for (const ValueRef& item : description_->As<torch::List>()->items) {
    Dict kept;
    for (const char* key :
         {"moe_layer_id", "module_path", kPrefix, "num_experts", "num_local_experts", "ep_size"}) {
      const ValueRef value = item->As<Dict>()->Find(key);
      if (value != nullptr) kept.Set(key, value);
    }
    all.items.push_back(torch::Make(std::move(kept)));
  }
  return torch::Make(std::move(all));
}

}  // namespace ckptd
