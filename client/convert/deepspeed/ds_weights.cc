#include "client/convert/deepspeed/ds_weights.h"

#include <algorithm>
#include <functional>
#include <set>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/convert/deepspeed/expert_weights.h"
#include "client/convert/deepspeed/shards/expert_layers.h"
#include "client/convert/deepspeed/state/ds_state.h"
#include "client/convert/deepspeed/state/ds_tag.h"
#include "client/convert/files/convert_error.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

int64_t RoundUp(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

absl::Status CheckSupported(const DsTag& tag) {
  if (!tag.layers.empty()) {
    return CannotConvert(absl::StrCat("there is ", tag.layers.front(),
                                      ": a pipeline module's parameters have no names of the whole model; "
                                      "ds-to-universal converts it"));
  }
  if (tag.optim.size() > 1) {
    return CannotConvert(absl::StrCat("it is of ", tag.optim.size(),
                                      " model-parallel ranks, and only ds-to-universal merges those"));
  }
  return absl::OkStatus();
}

class Gatherer {
 public:
  Gatherer(FileSystem& fs, Handle tag, bool exclude_frozen)
      : fs_(fs), tag_(tag), exclude_frozen_(exclude_frozen) {}

  absl::StatusOr<DsWeights> Run() {
    CKPTD_ASSIGN_OR_RETURN(files_, ScanDsTag(fs_, tag_));
    CKPTD_RETURN_IF_ERROR(CheckSupported(files_));
    if (!files_.experts.empty()) return RunWithExperts();
    CKPTD_RETURN_IF_ERROR(LoadOptim());
    CKPTD_RETURN_IF_ERROR(LoadModel());
    CKPTD_RETURN_IF_ERROR(CheckNoSpreadExperts());
    CKPTD_RETURN_IF_ERROR(AddBuffers());
    if (!exclude_frozen_)
      CKPTD_RETURN_IF_ERROR(gathered_.stage == 3 ? AddFrozenFragments() : AddFrozenWhole());
    CKPTD_RETURN_IF_ERROR(gathered_.stage == 3 ? AddPartitionedParameters() : AddPartitionedGroups());
    AddShared();
    return std::move(gathered_);
  }

 private:
  // Stages 1 and 2: experts are in files of their own.
  absl::StatusOr<DsWeights> RunWithExperts() {
    gathered_.ranks = static_cast<int>(files_.data_parallel());
    CKPTD_RETURN_IF_ERROR(LoadModel());
    CKPTD_ASSIGN_OR_RETURN(ExpertWeights trained,
                           GatherExpertWeights(fs_, tag_, files_, model_, gathered_.inputs));
    gathered_.stage = trained.stage;
    CKPTD_RETURN_IF_ERROR(AddBuffers());
    if (!exclude_frozen_) CKPTD_RETURN_IF_ERROR(AddFrozenWhole());
    for (Weight& weight : trained.weights) {
      if (!exclude_frozen_ || weight.kind != Weight::Kind::kFrozen) Add(std::move(weight));
    }
    AddShared();
    return std::move(gathered_);
  }

  // At stage 3 the experts that AutoEP spreads over ranks are cut over fewer ranks than the rest.
  absl::Status CheckNoSpreadExperts() const {
    CKPTD_ASSIGN_OR_RETURN(const ExpertLayers layers,
                           ExpertLayers::Parse(*model_.root->As<torch::Dict>(), false));
    for (const auto& [name, expert] : layers.params()) {
      if (expert.ranks() > 1)
        return CannotConvert(absl::StrCat(
            name, " has experts on ", expert.ranks(),
            " expert-parallel ranks; only ds-to-universal converts them at stage ", gathered_.stage));
    }
    return absl::OkStatus();
  }

  int AddInput(const std::string& path) {
    gathered_.inputs.push_back(path);
    return static_cast<int>(gathered_.inputs.size()) - 1;
  }

  absl::Status LoadOptim() {
    for (const std::string& path : files_.optim.front()) {
      CKPTD_ASSIGN_OR_RETURN(DsOptimState state, LoadDsOptimState(fs_, tag_, path, AddInput(path)));
      CKPTD_RETURN_IF_ERROR(CheckOptim(state, path));
      optim_.push_back(std::move(state));
    }
    gathered_.stage = optim_.front().stage;
    gathered_.ranks = static_cast<int>(optim_.size());
    return absl::OkStatus();
  }

  absl::Status CheckOptim(const DsOptimState& state, const std::string& path) const {
    const auto ranks = static_cast<int64_t>(files_.data_parallel());
    for (const int64_t count : state.partition_counts) {
      if (count == ranks) continue;
      return MakeError(absl::StatusCode::kFailedPrecondition, "INCOMPLETE_CHECKPOINT",
                       absl::StrCat(path, " is of ", count, " data-parallel ranks, and there are ", ranks,
                                    " files: some are missing, or of an older save to the same tag"));
    }
    const DsOptimState& first = optim_.empty() ? state : optim_.front();
    if (!state.step.Equals(first.step)) {
      return CannotConvert(absl::StrCat(path, " is of another step of the optimizer than ",
                                        files_.optim.front().front(), ": the files are not of one save"));
    }
    if (state.stage == first.stage && state.fp32.size() == first.fp32.size()) return absl::OkStatus();
    return CannotConvert(absl::StrCat(path, " is of stage ", state.stage, " with ", state.fp32.size(),
                                      " groups, and ", files_.optim.front().front(), " of stage ",
                                      first.stage, " with ", first.fp32.size(),
                                      ": the files are not of one save"));
  }

  absl::Status LoadModel() {
    const bool sharded = gathered_.stage == 3;
    const RankGrid& grid = files_.stage3_model;
    if (sharded ? grid.empty() || grid.front().size() != optim_.size() : files_.model.empty()) {
      return MakeError(absl::StatusCode::kFailedPrecondition, "INCOMPLETE_CHECKPOINT",
                       sharded ? "there is no zero_pp_rank_*_mp_rank_00_model_states.pt for each file of the "
                                 "optimizer's state"
                               : "there is no mp_rank_00_model_states.pt");
    }
    const std::string& path = sharded ? grid.front().front() : files_.model.front();
    model_input_ = AddInput(path);
    CKPTD_ASSIGN_OR_RETURN(model_, LoadDsModelState(fs_, tag_, path));
    if (!model_.has_buffer_names)
      return CannotConvert(absl::StrCat(path,
                                        " has no buffer_names: it is not a model's state that DeepSpeed "
                                        "saves with ZeRO"));
    if (model_.module == nullptr)
      return CannotConvert(absl::StrCat(path, ": the model's state is in other files (a pipeline module?)"));
    return CheckOneSave(sharded ? grid.front() : std::vector<std::string>{path});
  }

  absl::Status CheckOneSave(const std::vector<std::string>& model_files) const {
    OneSaveCheck check(files_.data_parallel());
    for (const std::string& path : model_files) {
      CKPTD_ASSIGN_OR_RETURN(const DsModelState state, LoadDsModelState(fs_, tag_, path));
      CKPTD_RETURN_IF_ERROR(check.Add(path, state));
    }
    return absl::OkStatus();
  }

  // A later weight of the same name takes the place of the earlier one, as in a dict.
  void Add(Weight weight) {
    const auto [known, is_new] = index_.try_emplace(weight.name, gathered_.weights.size());
    if (is_new) {
      gathered_.weights.push_back(std::move(weight));
    } else {
      gathered_.weights[known->second] = std::move(weight);
    }
  }

  absl::Status AddTensor(Weight::Kind kind, const std::string& name, const torch::Tensor& tensor) {
    if (tensor.math_bits != nullptr)
      return CannotConvert(
          absl::StrCat(name, " is a lazy conjugate or negation; save it with .resolve_conj()"));
    absl::StatusOr<std::vector<SourceRange>> ranges = RangesOf(tensor, model_input_);
    if (!ranges.ok()) return Annotate(ranges.status(), name);
    Add({.name = name,
         .kind = kind,
         .dtype = tensor.dtype,
         .shape = tensor.shape,
         .ranges = *std::move(ranges)});
    return absl::OkStatus();
  }

  // Calls `add` with the tensors of the model's state dict.
  absl::Status ForEachTensor(
      const std::function<absl::Status(const std::string& name, const torch::Tensor& tensor)>& add) {
    for (const auto& [key, value] : model_.module->entries()) {
      const auto* name = key->As<std::string>();
      const auto* tensor = value->As<torch::Tensor>();
      if (name != nullptr && tensor != nullptr) CKPTD_RETURN_IF_ERROR(add(*name, *tensor));
    }
    return absl::OkStatus();
  }

  absl::Status AddBuffers() {
    return ForEachTensor([&](const std::string& name, const torch::Tensor& tensor) {
      return model_.buffers.contains(name) ? AddTensor(Weight::Kind::kBuffer, name, tensor)
                                           : absl::OkStatus();
    });
  }

  // Stages 1 and 2. DeepSpeed writes fragments of frozen parameters only from stage 2 on, and those are the
  // parameters themselves. So take them from the model's state: what is neither a buffer, nor trained, nor
  // another name of something else.
  absl::Status AddFrozenWhole() {
    std::set<std::string> others = model_.buffers;
    for (const std::vector<NamedShape>& group : model_.shapes) {
      for (const NamedShape& named : group) others.insert(named.name);
    }
    for (const auto& [name, source] : model_.shared) others.insert(name);
    return ForEachTensor([&](const std::string& name, const torch::Tensor& tensor) {
      return others.contains(name) ? absl::OkStatus() : AddTensor(Weight::Kind::kFrozen, name, tensor);
    });
  }

  // Stage 3: each rank has a fragment of each frozen parameter.
  absl::Status AddFrozenFragments() {
    if (model_.frozen.empty()) return absl::OkStatus();
    std::vector<FlatVector> flats(model_.frozen.size());
    const std::vector<std::string>& paths = files_.stage3_model.front();
    for (size_t rank = 0; rank < paths.size(); ++rank) {
      const int input = rank == 0 ? model_input_ : AddInput(paths[rank]);
      CKPTD_ASSIGN_OR_RETURN(const DsModelState state, LoadDsModelState(fs_, tag_, paths[rank]));
      for (size_t i = 0; i < flats.size(); ++i) {
        const std::string& name = model_.frozen[i].name;
        const torch::ValueRef value =
            state.frozen_fragments != nullptr ? state.frozen_fragments->Find(name) : nullptr;
        const auto* tensor = value != nullptr ? value->As<torch::Tensor>() : nullptr;
        if (tensor == nullptr || !tensor->is_contiguous())
          return CannotConvert(absl::StrCat(paths[rank], " has no fragment of the frozen parameter ", name));
        CKPTD_RETURN_IF_ERROR(
            flats[i].Append({input, tensor->file_offset(), tensor->elements(), tensor->dtype}));
      }
    }
    for (size_t i = 0; i < flats.size(); ++i)
      CKPTD_RETURN_IF_ERROR(AddSlice(Weight::Kind::kFrozen, model_.frozen[i], flats[i], 0, "its fragments"));
    return absl::OkStatus();
  }

  static Weight Empty(Weight::Kind kind, const NamedShape& named, DataType dtype) {
    return {.name = named.name, .kind = kind, .dtype = dtype, .shape = named.shape, .ranges = {}};
  }

  absl::Status AddSlice(Weight::Kind kind, const NamedShape& named, const FlatVector& flat, int64_t offset,
                        const std::string& where) {
    if (named.elements > flat.elements() - offset) {
      return CannotConvert(absl::StrCat(named.name, " needs ", named.elements, " elements from ", offset,
                                        " on, and ", where, " have ", flat.elements()));
    }
    Weight weight = Empty(kind, named, flat.dtype());
    flat.AppendSlice(offset, named.elements, weight.ranges);
    Add(std::move(weight));
    return absl::OkStatus();
  }

  // Stages 1 and 2: the parameters of a group are one flat tensor, cut into equal partitions.
  absl::Status AddPartitionedGroups() {
    const std::vector<std::vector<int64_t>>& paddings = optim_.front().alignment_paddings;
    const size_t groups = optim_.front().fp32.size();
    if (model_.shapes.size() != groups || (!paddings.empty() && paddings.size() != groups)) {
      return CannotConvert(absl::StrCat("param_shapes has ", model_.shapes.size(),
                                        " groups, and the optimizer ", groups,
                                        ": the files are not of one save"));
    }
    for (size_t group = 0; group < groups; ++group) {
      FlatVector flat;
      for (const DsOptimState& rank : optim_) CKPTD_RETURN_IF_ERROR(flat.Append(rank.fp32[group]));
      CKPTD_RETURN_IF_ERROR(AddGroup(group, flat, paddings.empty() ? nullptr : &paddings[group]));
    }
    return absl::OkStatus();
  }

  absl::Status AddGroup(size_t group, const FlatVector& flat, const std::vector<int64_t>* paddings) {
    const std::vector<NamedShape>& shapes = model_.shapes[group];
    const std::string where = absl::StrCat("the flat tensors of group ", group);
    if (paddings != nullptr && paddings->size() != shapes.size()) {
      return CannotConvert(absl::StrCat("group ", group, " has ", shapes.size(), " parameters, and ",
                                        paddings->size(), " param_alignment_paddings"));
    }
    int64_t offset = 0;
    for (size_t i = 0; i < shapes.size(); ++i) {
      CKPTD_RETURN_IF_ERROR(AddSlice(Weight::Kind::kTrained, shapes[i], flat, offset, where));
      offset += shapes[i].elements;
      // The padding after the last parameter may have been cut off.
      if (paddings != nullptr) offset = std::min(offset + (*paddings)[i], flat.elements());
    }
    // What is left is padding at the end, less than DeepSpeed aligns to.
    const int64_t alignment = 2 * int64_t{gathered_.ranks};
    if (RoundUp(offset, alignment) == RoundUp(flat.elements(), alignment)) return absl::OkStatus();
    return CannotConvert(absl::StrCat("the parameters of group ", group, " are ", offset, " elements, and ",
                                      where, " have ", flat.elements(), ": the files are not of one save"));
  }

  // Stage 3: each parameter is cut into equal partitions, the last ones padded. A rank has its partitions of
  // all parameters one after the other, in sub-groups.
  absl::Status AddPartitionedParameters() {
    const int64_t ranks = gathered_.ranks;
    std::vector<FlatVector> flats(optim_.size());
    for (size_t rank = 0; rank < optim_.size(); ++rank) {
      for (const FlatTensor& part : optim_[rank].fp32) CKPTD_RETURN_IF_ERROR(flats[rank].Append(part));
    }
    int64_t offset = 0;
    for (const std::vector<NamedShape>& group : model_.shapes) {
      for (const NamedShape& named : group) {
        const int64_t partition = (named.elements + ranks - 1) / ranks;
        CKPTD_RETURN_IF_ERROR(AddPartitions(named, flats, offset, partition));
        offset += partition;
      }
    }
    for (size_t rank = 0; rank < flats.size(); ++rank) {
      if (flats[rank].elements() == offset) continue;
      return CannotConvert(absl::StrCat("the parameters are ", offset, " elements of each rank, and ",
                                        files_.optim.front()[rank], " has ", flats[rank].elements(),
                                        ": the files are not of one save"));
    }
    return absl::OkStatus();
  }

  absl::Status AddPartitions(const NamedShape& named, const std::vector<FlatVector>& flats, int64_t offset,
                             int64_t partition) {
    Weight weight = Empty(Weight::Kind::kTrained, named, flats.front().dtype());
    int64_t left = named.elements;
    for (size_t rank = 0; rank < flats.size(); ++rank) {
      const int64_t now = std::min(left, partition);
      if (now > flats[rank].elements() - offset) {
        return CannotConvert(absl::StrCat(files_.optim.front()[rank], " has ", flats[rank].elements(),
                                          " elements, too few for ", named.name,
                                          ": the files are not of one save"));
      }
      flats[rank].AppendSlice(offset, now, weight.ranges);
      left -= now;
    }
    Add(std::move(weight));
    return absl::OkStatus();
  }

  void AddShared() {
    for (const auto& [name, source] : model_.shared) {
      const auto found = index_.find(source);
      if (found == index_.end() || name == source) continue;
      Weight tied = gathered_.weights[found->second];
      tied.name = name;
      if (tied.tied_to < 0) tied.tied_to = static_cast<int>(found->second);
      Add(std::move(tied));
    }
  }

  FileSystem& fs_;
  const Handle tag_;
  const bool exclude_frozen_;
  DsTag files_;
  std::vector<DsOptimState> optim_;
  DsModelState model_;
  int model_input_ = 0;
  DsWeights gathered_;
  std::unordered_map<std::string, size_t> index_;
};

}  // namespace

absl::StatusOr<DsWeights> GatherDsWeights(FileSystem& fs, Handle tag, bool exclude_frozen) {
  return Gatherer(fs, tag, exclude_frozen).Run();
}

}  // namespace ckptd
