// What the file of a rank's ZeRO state says about every trained parameter: where its fp32 weights and the
// optimizer's states are. Reads no tensor but `step`.
#ifndef CKPTD_CLIENT_CONVERT_DEEPSPEED_STATE_DS_MOMENTS_H_
#define CKPTD_CLIENT_CONVERT_DEEPSPEED_STATE_DS_MOMENTS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/convert/deepspeed/state/ds_small_value.h"
#include "client/convert/deepspeed/state/flat_vector.h"
#include "client/formats/torch/archive.h"
#include "client/formats/torch/value.h"
#include "storage/fs/file_system.h"

namespace ckptd {

// Where a parameter's fragment is in the flat tensors of its group.
struct Fragment {
  std::string name;
  int64_t start = 0;
  int64_t elements = 0;
};

// Which of how many parts of the parameters of a group a rank has.
struct Partition {
  int64_t count = 1;
  int64_t rank = 0;
};

struct DsGroupStates {
  std::map<std::string, FlatTensor> flats;  // "fp32", "exp_avg", ...; stages 1 and 2 without the padding.
  SmallValue step;
  std::vector<Fragment> fragments;     // Stages 1 and 2.
  std::optional<Partition> partition;  // Stage 3, where it is not that of the data-parallel rank: of experts.
};

struct DsMoments {
  torch::Archive archive;
  int stage = 0;
  std::vector<DsGroupStates> groups;  // At stage 3: sub-groups.
  // The optimizer's state without what is sharded, and with its param_groups: what a universal checkpoint has
  // of it once. Its storages are the archive's.
  torch::ValueRef common;
};

// `dp` is the number of data-parallel ranks. `input` is the number of the file among the inputs. Errors name
// the file.
absl::StatusOr<DsMoments> LoadDsMoments(FileSystem& fs, Handle tag, const std::string& path, int input,
                                        int dp);

}  // namespace ckptd
#endif  // CKPTD_CLIENT_CONVERT_DEEPSPEED_STATE_DS_MOMENTS_H_
