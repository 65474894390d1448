// Plans files of weights, as HuggingFace's libraries name, shard and read them.
//
//   pytorch_model.bin, model.safetensors                         all weights, if they fit into one file
//   pytorch_model-00001-of-00002.bin, ….bin.index.json           otherwise: shards, and which weight is where
#ifndef CKPTD_CLIENT_CONVERT_FILES_WEIGHT_FILES_H_
#define CKPTD_CLIENT_CONVERT_FILES_WEIGHT_FILES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/convert/files/plan_archive.h"
#include "client/convert/files/stream_files.h"
#include "client/formats/data_type.h"

namespace ckptd {

// A tensor of a model's state dict: where its bytes are in the input's files.
struct Weight {
  enum class Kind { kBuffer, kFrozen, kTrained };  // As DeepSpeed tells them apart.

  std::string name;
  Kind kind = Kind::kTrained;
  DataType dtype = DataType::kFloat32;
  std::vector<int64_t> shape;
  std::vector<SourceRange> ranges;  // Its elements, in order.
  // The index of the weight that this one shares its memory with in the model, before it; -1: none.
  int tied_to = -1;

  int64_t elements() const;
};

struct WeightFilesOptions {
  bool safetensors = false;
  // Bytes of weights in a file. A larger weight has a file of its own. Unset: one file.
  std::optional<int64_t> max_shard_bytes;
  // Of weights that are floating-point numbers. Unset: as they are, like all others.
  std::optional<DataType> dtype;
};

// Weights are in the order given. In .bin, tied weights share their bytes. safetensors cannot express that,
// so each name has its own. CANNOT_CONVERT for a dtype that cannot be cast; other errors of the formats'
// writers.
absl::StatusOr<std::vector<PlannedFile>> PlanWeightFiles(const std::vector<Weight>& weights,
                                                         const WeightFilesOptions& options);

}  // namespace ckptd
#endif  // CKPTD_CLIENT_CONVERT_FILES_WEIGHT_FILES_H_
