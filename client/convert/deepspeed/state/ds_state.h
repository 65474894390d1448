// What the pickles of a DeepSpeed checkpoint say: names, shapes, and where in the files the tensors' bytes
// are. Reads no tensor.
#ifndef CKPTD_CLIENT_CONVERT_DEEPSPEED_STATE_DS_STATE_H_
#define CKPTD_CLIENT_CONVERT_DEEPSPEED_STATE_DS_STATE_H_

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/convert/deepspeed/state/ds_small_value.h"
#include "client/convert/deepspeed/state/ds_value.h"
#include "client/convert/deepspeed/state/flat_vector.h"
#include "client/formats/torch/value.h"
#include "storage/fs/file_system.h"

namespace ckptd {

// A file of the model's state.
struct DsModelState {
  torch::ValueRef root;                 // Keeps the pointers below valid.
  const torch::Dict* module = nullptr;  // The state dict; null for a pipeline module, and at stage 3 with
                                        // placeholders in place of parameters.
  bool has_buffer_names = false;
  std::set<std::string> buffers;                // Names in `module`.
  std::vector<std::vector<NamedShape>> shapes;  // Of the trained parameters of each group, as flattened.
  std::vector<std::pair<std::string, std::string>> shared;  // {name, the name of the parameter it is}
  std::vector<NamedShape> frozen;
  const torch::Dict* frozen_fragments = nullptr;       // Tensors by name. Null at stage 1.
  std::optional<int64_t> global_steps, dp_world_size;  // Of the job that saved. DeepSpeed writes both.
};

// A file of ZeRO's state.
struct DsOptimState {
  int stage = 0;
  std::vector<int64_t> partition_counts;  // Of each group; at stage 3 only one.
  std::vector<FlatTensor> fp32;           // The weights of each group; at stage 3 of each sub-group.
  // Elements to skip after each parameter of each group. Empty: none.
  std::vector<std::vector<int64_t>> alignment_paddings;
  SmallValue step;  // The optimizer's. Empty before its first step.
};

// `input` is the number of the file among the inputs of the conversion. CANNOT_CONVERT says what in the file
// is not as DeepSpeed writes it; archive.h has the other errors. All name the file.
absl::StatusOr<DsModelState> LoadDsModelState(FileSystem& fs, Handle tag, const std::string& path);
absl::StatusOr<DsOptimState> LoadDsOptimState(FileSystem& fs, Handle tag, const std::string& path, int input);

// Checks that the model's states of several files are of one save by as many data-parallel ranks as there are
// files of the optimizer's state, as far as the files say so.
class OneSaveCheck {
 public:
  explicit OneSaveCheck(size_t data_parallel) : data_parallel_(static_cast<int64_t>(data_parallel)) {}
  // INCOMPLETE_CHECKPOINT if the file is of another number of ranks, CANNOT_CONVERT if it is of another step
  // than the first one.
  absl::Status Add(const std::string& path, const DsModelState& state);

 private:
  const int64_t data_parallel_;
  std::string first_path_;
  std::optional<int64_t> first_steps_;
};

}  // namespace ckptd
#endif  // CKPTD_CLIENT_CONVERT_DEEPSPEED_STATE_DS_STATE_H_
