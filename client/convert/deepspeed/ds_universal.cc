#include "client/convert/deepspeed/ds_universal.h"

#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/convert/deepspeed/model_copy.h"
#include "client/convert/deepspeed/shards/tp_merge.h"
#include "client/convert/deepspeed/state/flat_vector.h"
#include "client/convert/deepspeed/universal_source.h"
#include "client/convert/files/convert_error.h"
#include "client/convert/files/input_reader.h"
#include "client/convert/files/plan_archive.h"
#include "client/convert/files/staging.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

constexpr char kZero[] = "zero";
constexpr char kLatest[] = "latest_universal";

// A batch of the plan.
struct Batch {
  std::vector<std::string> directories;
  std::vector<PlannedFile> files;
  int64_t bytes = 0;  // Of the plan, in memory.
};

class Conversion {
 public:
  using Progress = std::function<bool(int64_t, int64_t)>;
  Conversion(FileSystem& fs, Handle in, const DsUniversalOptions& options, const Progress& progress)
      : fs_(fs), in_(in), options_(options), progress_(progress), reader_(fs, in) {}

  // Checks everything, and finds out what there is to write.
  absl::Status Plan() {
    CKPTD_ASSIGN_OR_RETURN(source_, ReadUniversalSource(fs_, in_, options_.inject_missing_state));
    report_.stage = source_.stage;
    report_.pp = source_.pp;
    report_.tp = source_.tp;
    report_.dp = source_.dp;
    report_.params = static_cast<int64_t>(source_.params.size());
    CKPTD_RETURN_IF_ERROR(EachBatch([&](const Batch& batch) {
      for (const PlannedFile& file : batch.files) {
        report_.size.files += 1;
        report_.size.bytes += file.size;
      }
      return Tell(0);
    }));
    if (!FlatOutput() && !source_.params.empty()) report_.unused = source_.rules.Unused();
    if (report_.unused.empty() || !options_.strict) return absl::OkStatus();
    return CannotConvert(absl::StrCat("universal_checkpoint_info has patterns that no parameter matches: ",
                                      absl::StrJoin(report_.unused, ", "), "; --no_strict accepts them"));
  }

  absl::Status Write(Handle parent, const std::string& name) {
    CKPTD_ASSIGN_OR_RETURN(
        OutputTree out, OutputTree::Make(fs_, parent, name, report_.size, options_.output, &report_.removed));
    CKPTD_RETURN_IF_ERROR(out.MakeDir(kZero));
    int64_t written = 0;
    const absl::Status made = EachBatch([&](const Batch& batch) {
      for (const std::string& path : batch.directories) CKPTD_RETURN_IF_ERROR(out.MakeDir(path));
      CKPTD_RETURN_IF_ERROR(out.Stream(in_, source_.inputs, batch.files, [&](int64_t bytes) {
        return progress_(report_.size.bytes, written + bytes);
      }));
      for (const PlannedFile& file : batch.files) written += file.size;
      return absl::OkStatus();
    });
    CKPTD_RETURN_IF_ERROR(made);
    CKPTD_RETURN_IF_ERROR(out.Publish());
    const absl::Status latest = ReplaceFileDurably(fs_, parent, kLatest, name);
    if (latest.ok()) return latest;
    return Annotate(latest,
                    absl::StrCat("the output is complete, but writing ", kLatest, " beside it failed"));
  }

  DsUniversalReport TakeReport() { return std::move(report_); }

 private:
  using Work = std::function<absl::Status(const Batch&)>;

  absl::Status Tell(int64_t bytes) const {
    if (progress_(report_.size.bytes, bytes)) return absl::OkStatus();
    return MakeError(absl::StatusCode::kAborted, "INTERRUPTED", "the conversion was stopped before its end");
  }

  // At stage 3 without tensor parallelism a parameter's file has the flat tensor and nothing else, but for
  // experts.
  bool FlatOutput() const { return source_.stage == 3 && source_.tp == 1; }

  // Passes the plan of all files to `work`, in batches.
  absl::Status EachBatch(const Work& work) {
    Batch batch;
    for (const UniversalParam& param : source_.params) {
      const absl::Status added = AddParam(param, batch);
      if (!added.ok()) return Annotate(added, param.name);
      CKPTD_RETURN_IF_ERROR(PassIfFull(batch, work));
    }
    for (const UntrainedTensor& tensor : source_.untrained) {
      CKPTD_RETURN_IF_ERROR(AddUntrained(tensor, batch));
      CKPTD_RETURN_IF_ERROR(PassIfFull(batch, work));
    }
    CKPTD_RETURN_IF_ERROR(AddCommon(batch));
    CKPTD_RETURN_IF_ERROR(AddCopies(batch));
    return work(batch);
  }

  absl::Status PassIfFull(Batch& batch, const Work& work) const {
    if (batch.bytes < options_.plan_bytes) return absl::OkStatus();
    CKPTD_RETURN_IF_ERROR(work(batch));
    batch = {};
    return absl::OkStatus();
  }

  static void Add(PlannedFile file, Batch& batch) {
    batch.bytes += static_cast<int64_t>(sizeof(file) + file.path.size() + file.literals.size() +
                                        file.pieces.size() * sizeof(Piece));
    batch.files.push_back(std::move(file));
  }

  absl::Status AddParam(const UniversalParam& param, Batch& batch) {
    const std::string folder = absl::StrCat(kZero, "/", param.name);
    batch.directories.push_back(folder);
    const bool flat = FlatOutput() && !param.rule;
    TpRule rule = param.rule.value_or(TpRule());
    if (!flat && !param.rule) {
      CKPTD_ASSIGN_OR_RETURN(rule, source_.rules.RuleFor(param.name));
    }
    for (const auto& [name, state] : param.states) {
      const std::string path = absl::StrCat(folder, "/", name, ".pt");
      CKPTD_ASSIGN_OR_RETURN(PlannedFile file,
                             flat ? PlanFlat(param, state, path) : PlanMerged(rule, param, state, path));
      Add(std::move(file), batch);
    }
    if (param.step.value == nullptr) return absl::OkStatus();
    CKPTD_ASSIGN_OR_RETURN(PlannedFile step, PlanSmall(param.step, folder + "/step.pt"));
    Add(std::move(step), batch);
    return absl::OkStatus();
  }

  static absl::StatusOr<PlannedFile> PlanFlat(const UniversalParam& param, const UniversalParam::State& state,
                                              const std::string& path) {
    int64_t elements = 1, bytes = 0;
    for (const int64_t size : param.shapes.front()) elements *= size;
    for (const SourceRange& range : state.slices.front()) bytes += range.size;
    if (bytes != elements * InfoOf(state.dtype).item_bytes)
      return CannotConvert(
          absl::StrCat("its fragments have ", bytes, " bytes, and it has ", elements, " elements"));
    torch::Tensor tensor = torch::NewTensor(state.dtype, {elements});
    const Contents contents = {{tensor.storage.get(), state.slices.front()}};
    return PlanArchive(*torch::Make(std::move(tensor)), contents, path);
  }

  absl::StatusOr<PlannedFile> PlanMerged(const TpRule& rule, const UniversalParam& param,
                                         const UniversalParam::State& state, const std::string& path) {
    std::vector<TpSlice> slices;
    for (size_t tp = 0; tp < state.slices.size(); ++tp)
      slices.push_back({param.shapes[tp], state.slices[tp]});
    CKPTD_ASSIGN_OR_RETURN(
        MergedTensor merged,
        MergeTpSlices(rule, slices, state.dtype, [&](const SourceRange& range, std::span<std::byte> into) {
          return reader_.Read(source_.inputs, range, into);
        }));
    torch::Tensor tensor = torch::NewTensor(state.dtype, merged.shape);
    const Contents contents = {{tensor.storage.get(), std::move(merged.ranges)}};
    merged.notes.Set("param", torch::Make(std::move(tensor)));
    return PlanArchive(*torch::Make(std::move(merged.notes)), contents, path, std::move(merged.literals));
  }

  static absl::StatusOr<PlannedFile> PlanSmall(const SmallValue& small, const std::string& path) {
    Contents contents;
    if (const auto* tensor = small.value->As<torch::Tensor>()) {
      contents[tensor->storage.get()] = {{Piece::kLiteral, 0, static_cast<int64_t>(small.bytes.size())}};
    }
    return PlanArchive(*small.value, contents, path, small.bytes);
  }

  absl::Status AddUntrained(const UntrainedTensor& untrained, Batch& batch) {
    const Cast cast = {untrained.tensor.dtype, DataType::kFloat32};
    if (!CanCast(cast))
      return CannotConvert(absl::StrCat(untrained.name, " is ",
                                        std::string(InfoOf(untrained.tensor.dtype).torch_name),
                                        ", which ckptd cannot cast to float32"));
    absl::StatusOr<std::vector<SourceRange>> ranges = RangesOf(untrained.tensor, untrained.input);
    if (!ranges.ok()) return Annotate(ranges.status(), untrained.name);
    for (SourceRange& range : *ranges) range.cast = cast;
    torch::Tensor tensor = torch::NewTensor(DataType::kFloat32, untrained.tensor.shape);
    const Contents contents = {{tensor.storage.get(), *std::move(ranges)}};
    torch::Dict root;
    root.Set("param", torch::Make(std::move(tensor)));
    const std::string folder = absl::StrCat(kZero, "/", untrained.name);
    batch.directories.push_back(folder);
    CKPTD_ASSIGN_OR_RETURN(PlannedFile file,
                           PlanArchive(*torch::Make(std::move(root)), contents, folder + "/fp32.pt"));
    Add(std::move(file), batch);
    return absl::OkStatus();
  }

  absl::Status AddCommon(Batch& batch) {
    Contents contents;
    for (const torch::StorageRef& storage : source_.first.archive.storages)
      contents[storage.get()] = {{0, storage->file_offset, storage->bytes}};
    CKPTD_ASSIGN_OR_RETURN(PlannedFile file, PlanArchive(*source_.first.common, contents,
                                                         absl::StrCat(kZero, "/optimizer_state.pt")));
    Add(std::move(file), batch);
    return absl::OkStatus();
  }

  absl::Status AddCopies(Batch& batch) {
    for (const std::string& path : source_.copied) {
      const auto experts = source_.expert_infos.find(path);
      if (experts != source_.expert_infos.end()) {
        CKPTD_ASSIGN_OR_RETURN(PlannedFile copy,
                               PlanModelCopy(fs_, in_, path, InputOf(path), experts->second));
        Add(std::move(copy), batch);
        continue;
      }
      CKPTD_ASSIGN_OR_RETURN(const FileStat stat, fs_.Stat(in_, path));
      PlannedFile file = {.path = path, .size = stat.size, .literals = {}, .pieces = {}};
      if (stat.size > 0)
        file.pieces.push_back({.offset = 0, .size = stat.size, .input = InputOf(path), .from = 0});
      Add(std::move(file), batch);
    }
    return absl::OkStatus();
  }

  int InputOf(const std::string& path) {
    for (size_t i = 0; i < source_.inputs.size(); ++i) {
      if (source_.inputs[i] == path) return static_cast<int>(i);
    }
    source_.inputs.push_back(path);
    return static_cast<int>(source_.inputs.size()) - 1;
  }

  FileSystem& fs_;
  const Handle in_;
  const DsUniversalOptions& options_;
  const Progress& progress_;
  InputReader reader_;
  UniversalSource source_;
  DsUniversalReport report_;
};

}  // namespace

absl::StatusOr<DsUniversalReport> ConvertDsToUniversal(
    FileSystem& fs, Handle in, Handle parent, const std::string& name, const DsUniversalOptions& options,
    const std::function<bool(int64_t total, int64_t bytes)>& progress) {
  Conversion conversion(fs, in, options, progress);
  CKPTD_RETURN_IF_ERROR(CheckFree(fs, parent, name));
  CKPTD_RETURN_IF_ERROR(conversion.Plan());
  if (!options.dry_run) CKPTD_RETURN_IF_ERROR(conversion.Write(parent, name));
  return conversion.TakeReport();
}

}  // namespace ckptd
