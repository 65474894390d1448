// Plans files of weights, as HuggingFace's libraries name, shard and read them.
//
//   pytorch_model.bin, model.safetensors                         all weights, if they fit into one file
//   pytorch_model-00001-of-00002.bin, ….bin.index.json           otherwise: shards, and which weight is where
#ifndef CKPTD_CLIENT_CONVERT_DEEPSPEED_WEIGHT_FILES_H_
#define CKPTD_CLIENT_CONVERT_DEEPSPEED_WEIGHT_FILES_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "client/convert/deepspeed/ds_weights.h"
#include "client/convert/files/stream_files.h"

namespace ckptd {

struct WeightFilesOptions {
  bool safetensors = false;
  // Bytes of weights in a file. A larger weight has a file of its own. Unset: one file.
  std::optional<int64_t> max_shard_bytes;
  DataType dtype =
      DataType::kFloat32;  // Of weights that are floating-point numbers. Others stay as they are.
};

// Weights are in the order given. In .bin, tied weights share their bytes. safetensors cannot express that,
// so each name has its own. CANNOT_CONVERT for a dtype that cannot be cast; other errors of the formats'
// writers.
absl::StatusOr<std::vector<PlannedFile>> PlanWeightFiles(const std::vector<Weight>& weights,
                                                         const WeightFilesOptions& options);

}  // namespace ckptd
#endif  // CKPTD_CLIENT_CONVERT_DEEPSPEED_WEIGHT_FILES_H_
