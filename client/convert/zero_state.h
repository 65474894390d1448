// A ZeRO-1 optimizer's state, merged in thought: each tensor that was sharded is known by its full shape and
// by where the bytes of its rows lie; from that a shard for any number of ranks is made. Nothing is copied.
//
// The rule of sharding: dimension 0 is padded with zeros to a multiple of the number of ranks, and cut into
// equal parts. `base_state[id]` and `sharded_master_weights[id]` follow it, with the full shape in
// `shape_info[id]`. What is not sharded must be the same on all ranks: `step`, tensors without dimensions,
// param_groups, and everything else.
#ifndef CKPTD_CLIENT_CONVERT_ZERO_STATE_H_
#define CKPTD_CLIENT_CONVERT_ZERO_STATE_H_

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "absl/status/statusor.h"
#include "client/convert/nxd_state.h"
#include "client/formats/torch/value.h"
#include "storage/fs/file_system.h"

namespace ckptd {

struct SourceRange {
  int input;  // Of NxdStates.
  int64_t from;
  int64_t size;
};
// What a storage of a new tree is made of, in its order; the rest of it is zeros.
using Contents = std::unordered_map<const torch::Storage*, std::vector<SourceRange>>;

struct ZeroShard {
  torch::ValueRef root;
  Contents contents;
  std::unordered_set<const torch::Storage*> expert;  // See NxdStates.
};

class ZeroState {
 public:
  // Checks everything, so that a shard cannot fail. `states` is taken over. CANNOT_CONVERT says what is in
  // the way, where, and what to do; NO_OPTIMIZER_STATE: it is no state of ZeRO-1.
  static absl::StatusOr<ZeroState> Merge(FileSystem& fs, Handle tag, NxdStates states, bool from_full,
                                         bool to_full);

  // Number `index` of `count`; the one of one is the full state.
  ZeroShard Shard(int index, int count) const;

  const std::vector<std::string>& inputs() const { return states_.inputs; }

 private:
  friend class Merger;

  struct Sharded {
    torch::Tensor like;  // Of the full shape; its storage is of no account.
    std::vector<const torch::Tensor*> shards;
    bool expert = false;
  };
  ZeroState() = default;
  torch::ValueRef Rebuild(const torch::ValueRef& value, int index, int count, ZeroShard& shard) const;
  torch::ValueRef Cut(const Sharded& sharded, int index, int count, ZeroShard& shard) const;

  NxdStates states_;
  torch::ValueRef merged_;
  std::unordered_map<const torch::Value*, Sharded> sharded_;  // By their place in `merged_`.
  Contents kept_;                                             // Of what is not sharded.
  std::unordered_set<const torch::Storage*> kept_expert_;
};

}  // namespace ckptd
#endif  // CKPTD_CLIENT_CONVERT_ZERO_STATE_H_
