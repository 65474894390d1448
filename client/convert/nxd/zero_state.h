// The merged state of a ZeRO-1 optimizer, as metadata: for each sharded tensor its full shape and where the
// bytes of its rows are. From this a shard for any number of ranks is made. No tensor is copied.
//
// How states are sharded: dimension 0 is padded with zeros to a multiple of the number of ranks, and cut into
// equal parts. `base_state[id]` and `sharded_master_weights[id]` are sharded so, with the full shape in
// `shape_info[id]`. Everything else is not sharded and must be equal on all ranks: `step`, tensors without
// dimensions, param_groups, and the rest.
#ifndef CKPTD_CLIENT_CONVERT_NXD_ZERO_STATE_H_
#define CKPTD_CLIENT_CONVERT_NXD_ZERO_STATE_H_

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "absl/status/statusor.h"
#include "client/convert/files/plan_archive.h"
#include "client/convert/nxd/nxd_state.h"
#include "client/formats/torch/value.h"
#include "storage/fs/file_system.h"

namespace ckptd {

struct ZeroShard {
  torch::ValueRef root;
  Contents contents;
  std::unordered_set<const torch::Storage*> expert;  // See NxdStates.
};

class ZeroState {
 public:
  // Checks everything, so that Shard cannot fail. CANNOT_CONVERT says what is in the way, where, and what to
  // do. NO_OPTIMIZER_STATE: this is not a ZeRO-1 state.
  static absl::StatusOr<ZeroState> Merge(FileSystem& fs, Handle tag, NxdStates states, bool from_full,
                                         bool to_full);

  // Shard `index` of `count`. With `count` 1 it is the full state.
  ZeroShard Shard(int index, int count) const;

  const std::vector<std::string>& inputs() const { return states_.inputs; }

 private:
  friend class Merger;

  struct Sharded {
    torch::Tensor like;  // Has the full shape and the dtype; its storage is not used.
    std::vector<const torch::Tensor*> shards;
    bool expert = false;
  };
  ZeroState() = default;
  torch::ValueRef Rebuild(const torch::ValueRef& value, int index, int count, ZeroShard& shard) const;
  torch::ValueRef Cut(const Sharded& sharded, int index, int count, ZeroShard& shard) const;

  NxdStates states_;
  torch::ValueRef merged_;
  std::unordered_map<const torch::Value*, Sharded> sharded_;  // Key: the value's address in `merged_`.
  Contents kept_;                                             // The contents of what is not sharded.
  std::unordered_set<const torch::Storage*> kept_expert_;
};

}  // namespace ckptd
#endif  // CKPTD_CLIENT_CONVERT_NXD_ZERO_STATE_H_
