#include "client/convert/deepspeed/expert_weights.h"

#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/convert/deepspeed/shards/expert_shards.h"
#include "client/convert/deepspeed/shards/native_experts.h"
#include "client/convert/deepspeed/state/affine_map.h"
#include "client/convert/deepspeed/state/ds_moments.h"
#include "client/convert/deepspeed/state/ds_value.h"
#include "client/convert/deepspeed/state/flat_vector.h"
#include "client/convert/files/convert_error.h"
#include "client/convert/files/input_reader.h"
#include "client/convert/files/open_archive.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

using torch::Dict;

int64_t BytesOf(const std::vector<SourceRange>& ranges) {
  int64_t bytes = 0;
  for (const SourceRange& range : ranges) bytes += range.size;
  return bytes;
}

// The parts of a parameter, by expert-parallel rank; of one that all ranks share, only the first.
struct Parts {
  DataType dtype = DataType::kFloat32;
  std::map<size_t, std::vector<SourceRange>> of_rank;
};

class Gatherer {
 public:
  Gatherer(FileSystem& fs, Handle tag, const DsTag& files, const DsModelState& model,
           std::vector<std::string>& inputs)
      : fs_(fs), tag_(tag), files_(files), model_(model), inputs_(inputs) {}

  absl::StatusOr<ExpertWeights> Run() {
    const auto* root = model_.root->As<Dict>();
    CKPTD_ASSIGN_OR_RETURN(const ExpertLayers layers, ExpertLayers::Parse(*root, false));
    CKPTD_RETURN_IF_ERROR(shards_.AddLayers(layers));
    CKPTD_RETURN_IF_ERROR(shards_.ReadRanks(*root, DataParallel()));
    for (const std::string& path : files_.experts) CKPTD_RETURN_IF_ERROR(ReadExpertFile(path));
    CKPTD_RETURN_IF_ERROR(CountNative());
    for (int rank = 0; rank < DataParallel(); ++rank) CKPTD_RETURN_IF_ERROR(AddRank(rank));
    for (const std::vector<NamedShape>& group : model_.shapes) {
      for (const NamedShape& named : group) CKPTD_RETURN_IF_ERROR(AddWeights(named));
    }
    for (const auto& [name, expert] : shards_.layers().params()) {
      if (!done_.contains(name)) return CannotConvert(absl::StrCat("no rank trains the experts ", name));
    }
    CKPTD_RETURN_IF_ERROR(AddUntrained());
    return std::move(result_);
  }

 private:
  int DataParallel() const { return static_cast<int>(files_.data_parallel()); }

  int AddInput(const std::string& path) {
    inputs_.push_back(path);
    return static_cast<int>(inputs_.size()) - 1;
  }

  // Of deepspeed.moe: its names have the experts' numbers among all.
  absl::Status ReadExpertFile(const std::string& path) {
    if (!path.starts_with("layer_")) return absl::OkStatus();
    CKPTD_ASSIGN_OR_RETURN(const torch::Archive archive, OpenArchiveAt(fs_, tag_, path));
    CKPTD_ASSIGN_OR_RETURN(const Dict* root, ds::As<Dict>(archive.root, path, "a dict"));
    const int input = AddInput(path);
    for (const auto& [key, value] : root->entries()) {
      const auto* name = key->As<std::string>();
      const auto* tensor = value->As<torch::Tensor>();
      const std::optional<NativeExpert> native = name != nullptr ? ParseNativeExpert(*name) : std::nullopt;
      if (!native || tensor == nullptr) continue;
      numbers_[native->layer].insert(native->number);
      CKPTD_ASSIGN_OR_RETURN(std::vector<SourceRange> ranges, RangesOf(*tensor, input));
      saved_.push_back({.name = *name,
                        .kind = Weight::Kind::kFrozen,
                        .dtype = tensor->dtype,
                        .shape = tensor->shape,
                        .ranges = std::move(ranges)});
    }
    return absl::OkStatus();
  }

  // How many experts of each layer a rank has, and over how many ranks they are spread.
  absl::Status CountNative() {
    std::map<std::string, std::set<int>> own;
    for (const std::vector<NamedShape>& group : model_.shapes) {
      for (const NamedShape& named : group) {
        if (const auto native = ParseNativeExpert(named.name)) own[native->layer].insert(native->number);
      }
    }
    for (const auto& [layer, numbers] : own) {
      const size_t all = numbers_[layer].size(), of_rank = numbers.size();
      if (all == 0 || all % of_rank != 0 || files_.data_parallel() % (all / of_rank) != 0)
        return CannotConvert(absl::StrCat("there are files of ", all, " experts of ", layer, ", and each of ",
                                          files_.data_parallel(), " ranks trains ", of_rank));
      native_[layer] = {of_rank, all / of_rank};
    }
    return absl::OkStatus();
  }

  absl::Status AddRank(int rank) {
    const std::string& path = files_.optim.front()[static_cast<size_t>(rank)];
    const int input = AddInput(path);
    CKPTD_ASSIGN_OR_RETURN(const DsMoments moments, LoadDsMoments(fs_, tag_, path, input, DataParallel()));
    if (moments.stage == 3)
      return CannotConvert(absl::StrCat(path, " is of stage 3, and there are files of experts"));
    result_.stage = moments.stage;
    for (const DsGroupStates& group : moments.groups) {
      for (const Fragment& fragment : group.fragments)
        CKPTD_RETURN_IF_ERROR(AddFragment(fragment, group.flats.at("fp32"), RankOf(fragment.name, rank)));
    }
    return absl::OkStatus();
  }

  // The expert-parallel rank of a data-parallel one, if the parameter is of an expert.
  size_t RankOf(const std::string& name, int rank) const {
    if (const ExpertParam* const expert = shards_.Find(name)) return shards_.RankOf(*expert, rank);
    const std::optional<NativeExpert> native = ParseNativeExpert(name);
    const auto found = native ? native_.find(native->layer) : native_.end();
    return found != native_.end() ? shards_.ranks().Of(rank, found->second.spread) : 0;
  }

  absl::Status AddFragment(const Fragment& fragment, const FlatTensor& flat, size_t rank) {
    const auto [known, is_new] = parts_.try_emplace(fragment.name);
    if (is_new) known->second.dtype = flat.dtype;
    if (known->second.dtype != flat.dtype)
      return CannotConvert(absl::StrCat(fragment.name, " has several dtypes"));
    const int64_t item = InfoOf(flat.dtype).item_bytes;
    if (fragment.elements > 0)
      known->second.of_rank[rank].push_back(
          {flat.input, flat.from + fragment.start * item, fragment.elements * item});
    return absl::OkStatus();
  }

  absl::Status AddWeights(const NamedShape& named) {
    const Parts& parts = parts_[named.name];
    if (const ExpertParam* const expert = shards_.Find(named.name)) return AddMerged(*expert, named, parts);
    const std::optional<NativeExpert> native = ParseNativeExpert(named.name);
    if (!native) return Add(named.name, named.shape, parts, 0);
    const NativeLayer& layer = native_.at(native->layer);
    for (size_t rank = 0; rank < layer.spread; ++rank) {
      const size_t number = rank * layer.of_rank + static_cast<size_t>(native->number);
      CKPTD_RETURN_IF_ERROR(Add(native->NameOf(static_cast<int>(number)), named.shape, parts, rank));
    }
    return absl::OkStatus();
  }

  absl::Status Add(const std::string& name, const std::vector<int64_t>& shape, const Parts& parts,
                   size_t rank) {
    const auto found = parts.of_rank.find(rank);
    Weight weight = {.name = name, .dtype = parts.dtype, .shape = shape, .ranges = {}};
    if (found != parts.of_rank.end()) weight.ranges = found->second;
    return AddChecked(std::move(weight));
  }

  absl::Status AddMerged(const ExpertParam& expert, const NamedShape& named, const Parts& parts) {
    CKPTD_RETURN_IF_ERROR(shards_.AddShape(expert, named, 0));
    const AffineMap& map = *shards_.RuleOf(named.name)->map;
    std::vector<TpSlice> slices;
    for (size_t rank = 0; rank < map.slices.size(); ++rank) {
      const auto found = parts.of_rank.find(rank);
      slices.push_back({map.slices[rank].shape, {}});
      if (found != parts.of_rank.end()) slices.back().ranges = found->second;
    }
    InputReader reader(fs_, tag_);
    const auto read = [&](const SourceRange& range, std::span<std::byte> into) {
      return reader.Read(inputs_, range, into);
    };
    CKPTD_RETURN_IF_ERROR(CheckSizes(named.name, slices, InfoOf(parts.dtype).item_bytes));
    CKPTD_ASSIGN_OR_RETURN(std::vector<SourceRange> ranges, MergeByMap(map, slices, parts.dtype, read));
    return AddChecked(
        {.name = named.name, .dtype = parts.dtype, .shape = map.shape, .ranges = std::move(ranges)});
  }

  static absl::Status CheckSizes(const std::string& name, const std::vector<TpSlice>& slices, int64_t item) {
    for (const TpSlice& slice : slices) {
      int64_t bytes = item;
      for (const int64_t size : slice.shape) bytes *= size;
      if (bytes != BytesOf(slice.ranges)) return OtherSize(name, bytes, BytesOf(slice.ranges));
    }
    return absl::OkStatus();
  }

  static absl::Status OtherSize(const std::string& name, int64_t wanted, int64_t found) {
    return CannotConvert(absl::StrCat(name, " is ", wanted, " bytes, and the ranks have ", found,
                                      " of it: files are missing, or not of one save"));
  }

  absl::Status AddChecked(Weight weight) {
    const int64_t bytes = weight.elements() * InfoOf(weight.dtype).item_bytes;
    if (bytes != BytesOf(weight.ranges)) return OtherSize(weight.name, bytes, BytesOf(weight.ranges));
    done_.insert(weight.name);
    result_.weights.push_back(std::move(weight));
    return absl::OkStatus();
  }

  absl::Status AddUntrained() {
    for (Weight& weight : saved_) {
      if (done_.contains(weight.name)) continue;
      CKPTD_RETURN_IF_ERROR(AddChecked(std::move(weight)));
    }
    return absl::OkStatus();
  }

  struct NativeLayer {
    size_t of_rank = 1, spread = 1;
  };

  FileSystem& fs_;
  const Handle tag_;
  const DsTag& files_;
  const DsModelState& model_;
  std::vector<std::string>& inputs_;
  ExpertShards shards_;                           // AutoEP's.
  std::map<std::string, std::set<int>> numbers_;  // Of experts, by layer, in files.
  std::map<std::string, NativeLayer> native_;
  std::vector<Weight> saved_;  // What is in the files of experts.
  std::map<std::string, Parts> parts_;
  std::set<std::string> done_;
  ExpertWeights result_;
};

}  // namespace

absl::StatusOr<ExpertWeights> GatherExpertWeights(FileSystem& fs, Handle tag, const DsTag& files,
                                                  const DsModelState& model,
                                                  std::vector<std::string>& inputs) {
  return Gatherer(fs, tag, files, model, inputs).Run();
}

}  // namespace ckptd
