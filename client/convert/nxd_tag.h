// What a checkpoint of NeuronX Distributed has on disk: the names within a tag's directory.
//
//   optim/dp_rank_00_tp_rank_00_pp_rank_00.pt   one for each rank: a ZeRO-1 shard
//   optim/full_tp_rank_00_pp_rank_00.pt         the same merged, as the converter writes it
//   ….pt.info.pt, ….pt.tensors/                 beside a file, when it is saved as xser
//   model/  scheduler.pt  user_content.pt       carried over as they are
//   checkpoint  done                            the save has begun; it has ended
#ifndef CKPTD_CLIENT_CONVERT_NXD_TAG_H_
#define CKPTD_CLIENT_CONVERT_NXD_TAG_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/fs/file_system.h"

namespace ckptd {

struct CarriedFile {
  std::string path;  // Beneath the tag.
  int64_t size = 0;
};

struct NxdTag {
  bool full = false;  // Merged: `dp` is 1.
  int dp = 0, tp = 0, pp = 0;
  bool xser = false;
  std::vector<CarriedFile> carried;
  std::vector<std::string> carried_directories;  // A directory before what is in it.
  std::vector<std::string> passed_over;          // Beneath the tag, of nobody we know.
};

constexpr char kOptimDirectory[] = "optim";

// The name in optim/ of a shard, or of a merged state.
std::string NxdOptimName(bool full, int dp, int tp, int pp);
inline std::string NxdInfoName(const std::string& file) { return file + ".info.pt"; }
inline std::string NxdTensorsName(const std::string& file) { return file + ".tensors"; }
inline std::string NxdTensorName(int64_t tid) { return "tensor_" + std::to_string(tid) + ".pt"; }

// Looks at names only. Fails
//   NOT_FOUND, NO_OPTIMIZER_STATE                 nothing of ZeRO-1 is there
//   FAILED_PRECONDITION, INCOMPLETE_CHECKPOINT    shards are missing, all of which the message names; or the
//                                                 save was begun and has not ended (not with `unfinished`)
//   FAILED_PRECONDITION, CANNOT_CONVERT           it is of another kind
absl::StatusOr<NxdTag> ScanNxdTag(FileSystem& fs, Handle tag, bool unfinished);

}  // namespace ckptd
#endif  // CKPTD_CLIENT_CONVERT_NXD_TAG_H_
