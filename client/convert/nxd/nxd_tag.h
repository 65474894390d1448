// The layout of a checkpoint of NeuronX Distributed on disk: the names within a tag's directory.
//
//   optim/dp_rank_00_tp_rank_00_pp_rank_00.pt   a ZeRO-1 shard, one for each rank
//   optim/full_tp_rank_00_pp_rank_00.pt         the merged state, as the converter writes it
//   ….pt.info.pt, ….pt.tensors/                 beside a file that was saved as xser
//   model/  scheduler.pt  user_content.pt       copied unchanged
//   checkpoint  done                            markers: the save has begun; it has ended
#ifndef CKPTD_CLIENT_CONVERT_NXD_NXD_TAG_H_
#define CKPTD_CLIENT_CONVERT_NXD_NXD_TAG_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/fs/file_system.h"

namespace ckptd {

struct CarriedFile {
  std::string path;  // Relative to the tag.
  int64_t size = 0;
};

struct NxdTag {
  bool full = false;  // Merged. Then `dp` is 1.
  int dp = 0, tp = 0, pp = 0;
  bool xser = false;
  std::vector<CarriedFile> carried;
  std::vector<std::string> carried_directories;  // Parents come before their children.
  std::vector<std::string> skipped;  // Names in the tag that NxD does not write; relative to the tag.
};

constexpr char kOptimDirectory[] = "optim";

// The name in optim/ of a shard, or of a merged state if `full`.
std::string NxdOptimName(bool full, int dp, int tp, int pp);
inline std::string NxdInfoName(const std::string& file) { return file + ".info.pt"; }
inline std::string NxdTensorsName(const std::string& file) { return file + ".tensors"; }
inline std::string NxdTensorName(int64_t tid) { return "tensor_" + std::to_string(tid) + ".pt"; }

// Looks only at names. Fails with
//   NOT_FOUND, NO_OPTIMIZER_STATE                 there is no file of a ZeRO-1 optimizer
//   FAILED_PRECONDITION, INCOMPLETE_CHECKPOINT    shards are missing, and the message names them; or the save
//   has
//                                                 not ended (unless `allow_unfinished`)
//   FAILED_PRECONDITION, CANNOT_CONVERT           the checkpoint is of another kind
absl::StatusOr<NxdTag> ScanNxdTag(FileSystem& fs, Handle tag, bool allow_unfinished);

}  // namespace ckptd
#endif  // CKPTD_CLIENT_CONVERT_NXD_NXD_TAG_H_
