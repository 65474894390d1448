#include "client/convert/files/weight_files.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/convert/files/convert_error.h"
#include "client/formats/safetensors/safetensors.h"
#include "client/formats/torch/value.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

// Indices of weights.
using Shard = std::vector<size_t>;

class Planner {
 public:
  Planner(const std::vector<Weight>& weights, const WeightFilesOptions& options)
      : weights_(weights), options_(options) {}

  absl::StatusOr<std::vector<PlannedFile>> Run() {
    CKPTD_RETURN_IF_ERROR(CheckTypes());
    const std::vector<Shard> shards = Split();
    std::vector<PlannedFile> files;
    nlohmann::json places = nlohmann::json::object();
    for (size_t i = 0; i < shards.size(); ++i) {
      const std::string name = FileName(i, shards.size());
      CKPTD_ASSIGN_OR_RETURN(PlannedFile file, options_.safetensors ? PlanSafetensors(shards[i], name)
                                                                    : PlanBin(shards[i], name));
      files.push_back(std::move(file));
      for (const size_t index : shards[i]) places[weights_[index].name] = name;
    }
    if (shards.size() > 1) files.push_back(PlanIndex(places));
    return files;
  }

 private:
  DataType TypeOf(const Weight& weight) const {
    return IsFloatingPoint(weight.dtype) ? options_.dtype.value_or(weight.dtype) : weight.dtype;
  }
  int64_t BytesOf(const Weight& weight) const {
    return weight.elements() * InfoOf(TypeOf(weight)).item_bytes;
  }
  bool IsTied(const Weight& weight) const { return !options_.safetensors && weight.tied_to >= 0; }

  absl::Status CheckTypes() const {
    for (const Weight& weight : weights_) {
      if (CanCast({weight.dtype, TypeOf(weight)})) continue;
      return CannotConvert(absl::StrCat(weight.name, " is ", std::string(InfoOf(weight.dtype).torch_name),
                                        ", which ckptd cannot cast to ",
                                        std::string(InfoOf(TypeOf(weight)).torch_name)));
    }
    return absl::OkStatus();
  }

  // As huggingface_hub splits: in order, a new file where the next weight does not fit. Tied weights are
  // where the first of them is.
  std::vector<Shard> Split() {
    std::vector<Shard> shards;
    std::vector<std::pair<size_t, size_t>> tied;  // {weight, first of those that it is tied to}
    std::unordered_map<size_t, size_t> shard_of;
    Shard current;
    int64_t current_bytes = 0;
    const auto close = [&] {
      for (const size_t index : current) shard_of[index] = shards.size();
      shards.push_back(std::exchange(current, {}));
      current_bytes = 0;
    };
    const int64_t most = options_.max_shard_bytes.value_or(INT64_MAX);
    for (size_t i = 0; i < weights_.size(); ++i) {
      const Weight& weight = weights_[i];
      if (IsTied(weight)) {
        tied.emplace_back(i, static_cast<size_t>(weight.tied_to));
        continue;
      }
      const int64_t bytes = BytesOf(weight);
      total_bytes_ += bytes;
      if (bytes > most) {  // Alone, and those before and after it may share a file.
        shard_of[i] = shards.size();
        shards.push_back({i});
        continue;
      }
      if (current_bytes > most - bytes) close();
      current.push_back(i);
      current_bytes += bytes;
    }
    if (!current.empty() || shards.empty()) close();
    for (const auto& [index, first] : tied) shards[shard_of.at(first)].push_back(index);
    return shards;
  }

  std::string Stem() const { return options_.safetensors ? "model" : "pytorch_model"; }
  std::string Extension() const { return options_.safetensors ? ".safetensors" : ".bin"; }
  std::string FileName(size_t index, size_t count) const {
    if (count == 1) return Stem() + Extension();
    return absl::StrFormat("%s-%05d-of-%05d%s", Stem(), index + 1, count, Extension());
  }

  PlannedFile PlanIndex(const nlohmann::json& places) const {
    const nlohmann::json index = {{"metadata", {{"total_size", total_bytes_}}}, {"weight_map", places}};
    std::string text = index.dump(2, ' ', true, nlohmann::json::error_handler_t::replace) + "\n";
    PlannedFile file = {.path = absl::StrCat(Stem(), Extension(), ".index.json"),
                        .size = static_cast<int64_t>(text.size()),
                        .literals = std::move(text),
                        .pieces = {}};
    file.pieces.push_back({.offset = 0, .size = file.size, .input = Piece::kLiteral, .from = 0});
    return file;
  }

  // The ranges of a weight with the cast to its type in the file.
  std::vector<SourceRange> CastRanges(const Weight& weight) const {
    std::vector<SourceRange> ranges = weight.ranges;
    const Cast cast = {weight.dtype, TypeOf(weight)};
    for (SourceRange& range : ranges) range.cast = cast;
    return ranges;
  }

  absl::StatusOr<PlannedFile> PlanBin(const Shard& shard, const std::string& name) const {
    torch::Dict root;
    Contents contents;
    std::unordered_map<size_t, torch::ValueRef> tensors;  // By the weight that has the bytes.
    for (const size_t index : shard) {
      const Weight& weight = weights_[index];
      torch::ValueRef& tensor = tensors[IsTied(weight) ? static_cast<size_t>(weight.tied_to) : index];
      if (tensor == nullptr) {
        tensor = torch::Make(torch::NewTensor(TypeOf(weight), weight.shape));
        contents[tensor->As<torch::Tensor>()->storage.get()] = CastRanges(weight);
      }
      root.Set(weight.name, tensor);
    }
    return PlanArchive(*torch::Make(std::move(root)), contents, name);
  }

  absl::StatusOr<PlannedFile> PlanSafetensors(const Shard& shard, const std::string& name) const {
    safetensors::File file{{}, {{"format", "pt"}}};
    std::unordered_map<std::string_view, const Weight*> by_name;
    for (const size_t index : shard) {
      const Weight& weight = weights_[index];
      by_name.emplace(weight.name, &weight);
      file.tensors.push_back({.name = weight.name, .dtype = TypeOf(weight), .shape = weight.shape});
    }
    absl::StatusOr<safetensors::Layout> layout = safetensors::LayOut(std::move(file));
    if (!layout.ok()) return Annotate(layout.status(), name);
    PlannedFile planned = {
        .path = name, .size = layout->size, .literals = std::move(layout->header), .pieces = {}};
    planned.pieces.push_back({.offset = 0,
                              .size = static_cast<int64_t>(planned.literals.size()),
                              .input = Piece::kLiteral,
                              .from = 0});
    for (const safetensors::Tensor& tensor : layout->tensors)
      AppendPieces(CastRanges(*by_name.at(tensor.name)), tensor.offset, planned.pieces);
    return planned;
  }

  const std::vector<Weight>& weights_;
  const WeightFilesOptions& options_;
  int64_t total_bytes_ = 0;
};

}  // namespace

int64_t Weight::elements() const {
  int64_t elements = 1;
  for (const int64_t size : shape) elements *= size;
  return elements;
}

absl::StatusOr<std::vector<PlannedFile>> PlanWeightFiles(const std::vector<Weight>& weights,
                                                         const WeightFilesOptions& options) {
  return Planner(weights, options).Run();
}

}  // namespace ckptd
