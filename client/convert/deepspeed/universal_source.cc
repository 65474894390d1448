#include "client/convert/deepspeed/universal_source.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/convert/deepspeed/shards/expert_layers.h"
#include "client/convert/deepspeed/shards/expert_shards.h"
#include "client/convert/deepspeed/shards/native_experts.h"
#include "client/convert/deepspeed/state/ds_state.h"
#include "client/convert/deepspeed/state/ds_value.h"
#include "client/convert/files/convert_error.h"
#include "client/convert/files/value_text.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

using torch::Dict;
using torch::ValueRef;

// A folder of the output has this name.
absl::Status CheckName(const std::string& name) {
  const bool possible = !name.empty() && name != "." && name != ".." && name.size() <= 255 &&
                        name.find_first_of(std::string_view("/\0", 2)) == std::string::npos;
  if (possible) return absl::OkStatus();
  return CannotConvert(absl::StrCat("a parameter's name is \"", name, "\", which no folder can have"));
}

class SourceReader {
 public:
  SourceReader(FileSystem& fs, Handle tag, bool inject) : fs_(fs), tag_(tag), inject_(inject) {}

  absl::StatusOr<UniversalSource> Run() {
    CKPTD_ASSIGN_OR_RETURN(source_.files, ScanDsTag(fs_, tag_));
    source_.dp = static_cast<int>(source_.files.data_parallel());
    const std::string& first = source_.files.optim.front().front();
    CKPTD_ASSIGN_OR_RETURN(source_.first, LoadDsMoments(fs_, tag_, first, AddInput(first), source_.dp));
    source_.stage = source_.first.stage;
    CKPTD_RETURN_IF_ERROR(source_.stage == 3 ? ReadStage3() : ReadStage12());
    return std::move(source_);
  }

 private:
  int AddInput(const std::string& path) {
    const auto [known, is_new] = inputs_.try_emplace(path, static_cast<int>(source_.inputs.size()));
    if (is_new) source_.inputs.push_back(path);
    return known->second;
  }

  // ---- Stages 1 and 2 ----

  absl::Status ReadStage12() {
    const std::vector<std::string>& models = source_.files.model;
    if (models.size() != source_.files.optim.size()) {
      return MakeError(absl::StatusCode::kFailedPrecondition, "INCOMPLETE_CHECKPOINT",
                       absl::StrCat("there are ", models.size(),
                                    " files mp_rank_*_model_states.pt, and the "
                                    "optimizer's state is of ",
                                    source_.files.optim.size(), " model-parallel ranks"));
    }
    std::vector<DsModelState> states;
    OneSaveCheck one_save(source_.files.data_parallel());
    for (const std::string& path : models) {
      CKPTD_ASSIGN_OR_RETURN(DsModelState state, LoadDsModelState(fs_, tag_, path));
      CKPTD_RETURN_IF_ERROR(one_save.Add(path, state));
      states.push_back(std::move(state));
    }
    source_.copied = models;
    CKPTD_RETURN_IF_ERROR(ReadDegrees(states));
    CKPTD_RETURN_IF_ERROR(ReadRules(states.front(), true));
    CKPTD_RETURN_IF_ERROR(ReadExperts(states));
    for (size_t mp = 0; mp < states.size(); ++mp) CKPTD_RETURN_IF_ERROR(AddShapes(states[mp], TpOf(mp)));
    for (size_t mp = 0; mp < states.size(); ++mp) CKPTD_RETURN_IF_ERROR(AddFragments(mp));
    CKPTD_RETURN_IF_ERROR(SetShapes());
    for (size_t mp = 0; mp < states.size(); ++mp) CKPTD_RETURN_IF_ERROR(AddUntrained(states[mp], models[mp]));
    return source_.files.experts.empty() ? absl::OkStatus() : CheckNoneLost();
  }

  // What the optimizer has no state of is in the model's state, but for experts, which are in their own
  // files.
  absl::Status CheckNoneLost() const {
    for (const auto& [name, shapes] : shapes_) {
      if (!index_.contains(name))
        return CannotConvert(absl::StrCat(name,
                                          " is in no state of the optimizer: it has not been trained, and "
                                          "ckptd does not take it from the files of experts"));
    }
    return absl::OkStatus();
  }

  // ---- Experts ----

  // Stages 1 and 2.
  absl::Status ReadExperts(const std::vector<DsModelState>& states) {
    for (const DsModelState& state : states) {
      CKPTD_ASSIGN_OR_RETURN(const ExpertLayers layers, ExpertLayers::Parse(*state.root->As<Dict>(), false));
      CKPTD_RETURN_IF_ERROR(experts_.AddLayers(layers));
    }
    if (experts_.empty()) return CheckNative(states);
    if (source_.tp > 1)
      return CannotConvert(absl::StrCat("it has AutoEP's experts and ", source_.tp,
                                        " tensor-parallel ranks: load it with the same ranks"));
    CKPTD_RETURN_IF_ERROR(experts_.ReadRanks(*states.front().root->As<Dict>(), source_.dp));
    const ExpertInfo info = {R"(\.experts\.w[123]$)", experts_.layers().ShortDescription()};
    for (const std::string& path : source_.copied) source_.expert_infos.emplace(path, info);
    return absl::OkStatus();
  }

  absl::Status CheckNative(const std::vector<DsModelState>& states) const {
    if (source_.files.experts.empty()) return absl::OkStatus();
    std::vector<std::string> names;
    for (const DsModelState& state : states) {
      for (const std::vector<NamedShape>& group : state.shapes) {
        for (const NamedShape& named : group) names.push_back(named.name);
      }
    }
    return CheckAllExpertsOnEachRank(source_.files.experts, names);
  }

  size_t TpOf(size_t mp) const { return mp % static_cast<size_t>(source_.tp); }
  int PpOf(size_t mp) const { return static_cast<int>(mp) / source_.tp; }

  // How many of the model-parallel ranks are tensor- and how many pipeline-parallel.
  absl::Status ReadDegrees(const std::vector<DsModelState>& states) {
    const auto count = static_cast<int>(states.size());
    source_.tp = count;
    const ValueRef value = states.front().root->As<Dict>()->Find("checkpoint_parallel_dimensions");
    if (const auto* degrees = value != nullptr ? value->As<Dict>() : nullptr) {
      CKPTD_ASSIGN_OR_RETURN(const int64_t pp, ds::Integer(degrees->Find("pp_degree"), "pp_degree"));
      CKPTD_ASSIGN_OR_RETURN(const int64_t tp, ds::Integer(degrees->Find("tp_degree"), "tp_degree"));
      if (pp < 1 || tp < 1 || pp > count || tp > count || pp * tp != count)
        return CannotConvert(absl::StrCat("pp_degree ", pp, " times tp_degree ", tp,
                                          " is not the number of "
                                          "files mp_rank_*, ",
                                          count));
      source_.tp = static_cast<int>(tp);
    } else {
      // The files of a layer of a pipeline module are of its tensor-parallel ranks.
      const auto of_layer = static_cast<int>(
          std::count_if(source_.files.layers.begin(), source_.files.layers.end(),
                        [](const std::string& name) { return name.starts_with("layer_01"); }));
      if (of_layer > 0 && count % of_layer == 0) source_.tp = of_layer;
    }
    source_.pp = count / source_.tp;
    return absl::OkStatus();
  }

  absl::Status ReadRules(const DsModelState& state, bool required) {
    const auto* root = state.root->As<Dict>();
    CKPTD_ASSIGN_OR_RETURN(const Dict* info, ds::OptionalDict(root->Find("universal_checkpoint_info"),
                                                              "universal_checkpoint_info"));
    if (info == nullptr && required && !inject_)
      return CannotConvert(
          "the model's state has no universal_checkpoint_info, which the training program gives as "
          "client state; without tensor parallelism, --inject_missing_state does without it");
    if (info == nullptr) return absl::OkStatus();
    CKPTD_ASSIGN_OR_RETURN(source_.rules, TpRules::Parse(*info));
    return absl::OkStatus();
  }

  // A parameter that is in several pipeline stages must have one shape.
  absl::Status AddShapes(const DsModelState& state, size_t tp) {
    for (const std::vector<NamedShape>& group : state.shapes) {
      for (const NamedShape& named : group) {
        if (const ExpertParam* const expert = experts_.Find(named.name)) {
          // At stage 3 each rank has its own. Below, the first data-parallel rank has written this, which is
          // the first expert-parallel one.
          if (source_.stage < 3) CKPTD_RETURN_IF_ERROR(experts_.AddShape(*expert, named, 0));
          continue;
        }
        auto& of_tp = shapes_[named.name];
        of_tp.resize(static_cast<size_t>(source_.tp));
        if (of_tp[tp].has_value() && *of_tp[tp] != named.shape)
          return CannotConvert(absl::StrCat(named.name, " is ", ShapeText(*of_tp[tp]),
                                            " in one pipeline stage and ", ShapeText(named.shape),
                                            " in another"));
        of_tp[tp] = named.shape;
      }
    }
    return absl::OkStatus();
  }

  absl::Status AddFragments(size_t mp) {
    for (int dp = 0; dp < source_.dp; ++dp) {
      const std::string& path = source_.files.optim[mp][static_cast<size_t>(dp)];
      const int input = AddInput(path);
      CKPTD_ASSIGN_OR_RETURN(const DsMoments moments, LoadDsMoments(fs_, tag_, path, input, source_.dp));
      if (moments.stage == 3) return CannotConvert(absl::StrCat(path, " is of stage 3, and others are not"));
      for (const DsGroupStates& group : moments.groups) {
        for (const Fragment& fragment : group.fragments) {
          if (PpOf(mp) > 0 && source_.rules.IsPipelineReplicated(fragment.name)) continue;
          CKPTD_RETURN_IF_ERROR(AddFragment(fragment, group, mp, dp));
        }
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<UniversalParam*> ParamOf(const std::string& name, int pipeline_stage) {
    const auto [known, is_new] = index_.try_emplace(name, source_.params.size());
    if (is_new) {
      CKPTD_RETURN_IF_ERROR(CheckName(name));
      source_.params.push_back({.name = name, .pipeline_stage = pipeline_stage, .states = {}, .shapes = {}});
    }
    UniversalParam& param = source_.params[known->second];
    if (param.pipeline_stage != pipeline_stage)
      return CannotConvert(absl::StrCat(name, " is in the pipeline stages ", param.pipeline_stage, " and ",
                                        pipeline_stage,
                                        ", and no pipeline_replicated_parameter_patterns "
                                        "says that they are copies"));
    return &param;
  }

  absl::Status AddFragment(const Fragment& fragment, const DsGroupStates& group, size_t mp, int dp) {
    CKPTD_ASSIGN_OR_RETURN(UniversalParam* const param, ParamOf(fragment.name, PpOf(mp)));
    const ExpertParam* const expert = experts_.Find(fragment.name);
    const size_t slice = expert != nullptr ? experts_.RankOf(*expert, dp) : TpOf(mp);
    for (const auto& [name, flat] : group.flats)
      CKPTD_RETURN_IF_ERROR(AddRange(*param, name, flat, fragment.start, fragment.elements, slice));
    if (group.step.value == nullptr) return absl::OkStatus();
    if (param->step.value == nullptr) param->step = group.step;
    if (param->step.Equals(group.step)) return absl::OkStatus();
    return CannotConvert(absl::StrCat(fragment.name, " has different steps on different ranks"));
  }

  absl::Status AddRange(UniversalParam& param, const std::string& state, const FlatTensor& flat,
                        int64_t start, int64_t elements, size_t slice) {
    const auto [known, is_new] = param.states.try_emplace(state);
    UniversalParam::State& to = known->second;
    if (is_new) to = {.dtype = flat.dtype, .slices = {}};
    const ExpertParam* const expert = experts_.Find(param.name);
    to.slices.resize(expert != nullptr ? expert->ranks() : static_cast<size_t>(source_.tp));
    if (to.dtype != flat.dtype)
      return CannotConvert(absl::StrCat(state, " of ", param.name, " has several dtypes"));
    const int64_t item = InfoOf(flat.dtype).item_bytes;
    if (elements > 0) to.slices[slice].push_back({flat.input, flat.from + start * item, elements * item});
    return absl::OkStatus();
  }

  absl::Status SetShapes() {
    CKPTD_RETURN_IF_ERROR(SetExpertRules());
    for (UniversalParam& param : source_.params) {
      if (param.rule) continue;
      const auto found = shapes_.find(param.name);
      if (found == shapes_.end()) return CannotConvert(absl::StrCat("param_shapes has no ", param.name));
      for (size_t tp = 0; tp < found->second.size(); ++tp) {
        if (!found->second[tp].has_value())
          return CannotConvert(absl::StrCat("tensor-parallel rank ", tp, " has no ", param.name));
        param.shapes.push_back(*found->second[tp]);
      }
    }
    return absl::OkStatus();
  }

  absl::Status SetExpertRules() {
    for (const auto& [name, expert] : experts_.layers().params()) {
      const TpRule* const rule = experts_.RuleOf(name);
      const auto param = index_.find(name);
      if (rule == nullptr || param == index_.end())
        return CannotConvert(absl::StrCat("ds_autoep_layers has the experts ", name, ", and ",
                                          rule == nullptr ? "param_shapes" : "the optimizer's state",
                                          " has none of them: they are not trained (frozen?)"));
      UniversalParam& to = source_.params[param->second];
      to.rule = *rule;
      for (const AffineMap::Slice& slice : rule->map->slices) to.shapes.push_back(slice.shape);
    }
    return absl::OkStatus();
  }

  // Of several model-parallel ranks the first has its way, as in ds_to_universal.py.
  absl::Status AddUntrained(const DsModelState& state, const std::string& path) {
    if (state.module == nullptr) return absl::OkStatus();  // The weights are in files of layers.
    const int input = AddInput(path);
    for (const auto& [key, value] : state.module->entries()) {
      const auto* name = key->As<std::string>();
      const auto* tensor = value->As<torch::Tensor>();
      if (name == nullptr || tensor == nullptr || !index_.try_emplace(*name, source_.params.size()).second)
        continue;
      CKPTD_RETURN_IF_ERROR(CheckName(*name));
      source_.untrained.push_back({*name, *tensor, input});
    }
    return absl::OkStatus();
  }

  // ---- Stage 3 ----

  absl::Status ReadStage3() {
    const RankGrid& models = source_.files.stage3_model;
    const RankGrid& optim = source_.files.optim;
    if (models.size() != optim.size() || models.front().size() != optim.front().size()) {
      return MakeError(absl::StatusCode::kFailedPrecondition, "INCOMPLETE_CHECKPOINT",
                       "there is no zero_pp_rank_*_model_states.pt for each file of the optimizer's state");
    }
    OneSaveCheck one_save(source_.files.data_parallel());
    for (const std::vector<std::string>& row : models) {
      for (const std::string& path : row) {
        CKPTD_ASSIGN_OR_RETURN(const DsModelState state, LoadDsModelState(fs_, tag_, path));
        CKPTD_RETURN_IF_ERROR(one_save.Add(path, state));
      }
    }
    source_.tp = static_cast<int>(optim.size());
    for (size_t tp = 0; tp < optim.size(); ++tp) CKPTD_RETURN_IF_ERROR(ReadTpRank(tp));
    for (const std::vector<std::string>& row : models)
      source_.copied.insert(source_.copied.end(), row.begin(), row.end());
    for (const auto* more : {&source_.files.model, &source_.files.layers})
      source_.copied.insert(source_.copied.end(), more->begin(), more->end());
    return SetShapes();
  }

  absl::Status ReadTpRank(size_t tp) {
    const std::vector<std::string>& models = source_.files.stage3_model[tp];
    CKPTD_ASSIGN_OR_RETURN(const DsModelState state, LoadDsModelState(fs_, tag_, models.front()));
    CKPTD_ASSIGN_OR_RETURN(const ExpertLayers layers, ExpertLayers::Parse(*state.root->As<Dict>(), true));
    if (tp == 0) {
      CKPTD_RETURN_IF_ERROR(ReadRules(state, false));
      CKPTD_RETURN_IF_ERROR(experts_.AddLayers(layers));
    }
    if (experts_.empty() && !source_.files.experts.empty())
      return CannotConvert(absl::StrCat("there is ", source_.files.experts.front(),
                                        ", and nothing says where the experts are at stage 3"));
    if (!experts_.empty() && source_.tp > 1)
      return CannotConvert(
          "it has AutoEP's experts and several tensor-parallel ranks: load it with the same ranks");
    if (!experts_.empty()) return ReadExpertPartitions(models);
    CKPTD_RETURN_IF_ERROR(AddShapes(state, tp));
    for (size_t dp = 0; dp < models.size(); ++dp) CKPTD_RETURN_IF_ERROR(AddPartitions(state, layers, tp, dp));
    return absl::OkStatus();
  }

  // With experts, ranks have different parameters, each by its own file.
  absl::Status ReadExpertPartitions(const std::vector<std::string>& models) {
    for (size_t dp = 0; dp < models.size(); ++dp) {
      CKPTD_ASSIGN_OR_RETURN(const DsModelState state, LoadDsModelState(fs_, tag_, models[dp]));
      CKPTD_ASSIGN_OR_RETURN(const ExpertLayers own, ExpertLayers::Parse(*state.root->As<Dict>(), true));
      if (own.empty())
        return CannotConvert(absl::StrCat(models[dp], " has no ds_autoep_layers, and others have"));
      const absl::Status merged = experts_.AddLayers(own);
      if (!merged.ok()) return Annotate(merged, models[dp]);
      source_.expert_infos.emplace(models[dp], ExpertInfo{R"(.*\.experts\.w[123]$)", own.description()});
      if (dp == 0) CKPTD_RETURN_IF_ERROR(AddShapes(state, 0));
      CKPTD_RETURN_IF_ERROR(AddPartitions(state, own, 0, dp));
    }
    return absl::OkStatus();
  }

  // `own`: the layers by the rank's own file.
  absl::Status AddPartitions(const DsModelState& state, const ExpertLayers& own, size_t tp, size_t dp) {
    const std::string& path = source_.files.optim[tp][dp];
    CKPTD_ASSIGN_OR_RETURN(const DsMoments moments,
                           LoadDsMoments(fs_, tag_, path, AddInput(path), source_.dp));
    if (moments.stage != 3 || moments.groups.size() != state.shapes.size())
      return CannotConvert(absl::StrCat(path, " is of stage ", moments.stage, " with ", moments.groups.size(),
                                        " sub-groups, and the model's state has ", state.shapes.size()));
    CKPTD_RETURN_IF_ERROR(CheckStep(moments, path));
    for (size_t i = 0; i < moments.groups.size(); ++i) {
      const absl::Status added = AddSubGroup(state.shapes[i], moments.groups[i], own, tp, dp);
      if (!added.ok()) return Annotate(added, path);
    }
    return absl::OkStatus();
  }

  // All ranks step together, so other steps mean another save.
  absl::Status CheckStep(const DsMoments& moments, const std::string& path) {
    for (const DsGroupStates& group : moments.groups) {
      if (group.step.value == nullptr) continue;
      if (step_.value == nullptr) step_ = group.step;
      if (!step_.Equals(group.step))
        return CannotConvert(absl::StrCat(path, " is of another step of the optimizer than ",
                                          source_.files.optim.front().front(),
                                          ": the files are not of one save"));
    }
    return absl::OkStatus();
  }

  absl::Status AddSubGroup(const std::vector<NamedShape>& shapes, const DsGroupStates& group,
                           const ExpertLayers& own, size_t tp, size_t dp) {
    const Partition part = group.partition.value_or(Partition{source_.dp, static_cast<int64_t>(dp)});
    int64_t offset = 0;
    for (const NamedShape& named : shapes) {
      const int64_t partition = (named.elements + part.count - 1) / part.count;
      const int64_t real = std::clamp<int64_t>(named.elements - part.rank * partition, 0, partition);
      CKPTD_ASSIGN_OR_RETURN(UniversalParam* const param, ParamOf(named.name, 0));
      size_t slice = tp;
      if (const ExpertParam* const expert = own.Find(named.name)) {
        slice = static_cast<size_t>(*expert->own_rank);
        CKPTD_RETURN_IF_ERROR(experts_.AddShape(*expert, named, slice));
        CKPTD_RETURN_IF_ERROR(experts_.AddPartition(named.name, slice, part));
      }
      for (const auto& [name, flat] : group.flats) {
        if (real > flat.elements - offset)
          return CannotConvert(absl::StrCat("there are ", flat.elements, " elements of ", name,
                                            ", too few for ", named.name, ": the files are not of one save"));
        CKPTD_RETURN_IF_ERROR(AddRange(*param, name, flat, offset, real, slice));
      }
      offset += partition;
    }
    return absl::OkStatus();
  }

  FileSystem& fs_;
  const Handle tag_;
  const bool inject_;
  UniversalSource source_;
  std::unordered_map<std::string, int> inputs_;
  std::unordered_map<std::string, size_t> index_;
  ExpertShards experts_;  // AutoEP's.
  SmallValue step_;       // Stage 3: of the optimizer.
  // {name: {tensor-parallel rank: shape}}
  std::unordered_map<std::string, std::vector<std::optional<std::vector<int64_t>>>> shapes_;
};

}  // namespace

absl::StatusOr<UniversalSource> ReadUniversalSource(FileSystem& fs, Handle tag, bool inject_missing_state) {
  return SourceReader(fs, tag, inject_missing_state).Run();
}

}  // namespace ckptd
