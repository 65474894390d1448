// The optimizer states of one tensor- and pipeline-parallel rank: the contents of the files of all its
// data-parallel ranks, and where their tensors' bytes are. Reads no tensor.
#ifndef CKPTD_CLIENT_CONVERT_NXD_NXD_STATE_H_
#define CKPTD_CLIENT_CONVERT_NXD_NXD_STATE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/convert/nxd/nxd_tag.h"
#include "client/formats/torch/value.h"
#include "storage/fs/file_system.h"

namespace ckptd {

struct NxdStates {
  std::vector<std::string> inputs;     // Paths of the files, relative to the tag.
  std::vector<torch::ValueRef> ranks;  // One tree for each data-parallel rank, with all references to tensors
                                       // resolved.
  std::unordered_map<const torch::Storage*, int> input_of;  // The index of the input that holds a storage.
  std::vector<torch::StorageRef> storages;                  // Keeps the storages' addresses valid.
  // The storages of tensors that .info.pt marks as expert_model_parallel.
  std::unordered_set<const torch::Storage*> expert;
};

// FAILED_PRECONDITION, reason INCOMPLETE_CHECKPOINT, names the tensor files of this rank that are missing. An
// archive's error names its file.
absl::StatusOr<NxdStates> LoadNxdStates(FileSystem& fs, Handle tag, const NxdTag& kind, int tp, int pp);

// Reads bytes of contiguous tensors. Keeps the file that was read last open. One thread at a time.
class TensorReader {
 public:
  TensorReader(FileSystem& fs, Handle tag, const NxdStates& states) : fs_(fs), tag_(tag), states_(states) {}
  // Fills `into` with the tensor's bytes from byte `offset` on.
  absl::Status Read(const torch::Tensor& tensor, int64_t offset, std::span<std::byte> into);

 private:
  FileSystem& fs_;
  const Handle tag_;
  const NxdStates& states_;
  int input_ = -1;
  ScopedHandle file_;
};

}  // namespace ckptd
#endif  // CKPTD_CLIENT_CONVERT_NXD_NXD_STATE_H_
