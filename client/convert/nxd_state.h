// The optimizer states of one tensor- and pipeline-parallel rank: what the files of all its data-parallel
// ranks say, and where in them the bytes lie. No tensor is read.
#ifndef CKPTD_CLIENT_CONVERT_NXD_STATE_H_
#define CKPTD_CLIENT_CONVERT_NXD_STATE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/convert/nxd_tag.h"
#include "client/formats/torch/value.h"
#include "storage/fs/file_system.h"

namespace ckptd {

struct NxdStates {
  std::vector<std::string> inputs;     // Files, beneath the tag.
  std::vector<torch::ValueRef> ranks;  // A tree for each data-parallel rank. References are resolved: tensors
                                       // are tensors, wherever they lie.
  std::unordered_map<const torch::Storage*, int> input_of;  // The input that a storage lies in.
  std::vector<torch::StorageRef> storages;                  // Keeps their addresses.
  // Of the tensors that .info.pt calls expert_model_parallel.
  std::unordered_set<const torch::Storage*> expert;
};

// FAILED_PRECONDITION, reason INCOMPLETE_CHECKPOINT, names all tensor files of a rank that are missing;
// errors of the archive name the file.
absl::StatusOr<NxdStates> LoadNxdStates(FileSystem& fs, Handle tag, const NxdTag& kind, int tp, int pp);

// Reads bytes of contiguous tensors; the file that was read last stays open.
class TensorReader {
 public:
  TensorReader(FileSystem& fs, Handle tag, const NxdStates& states) : fs_(fs), tag_(tag), states_(states) {}
  // From the tensor's byte `offset` on, all of `into`.
  absl::Status Read(const torch::Tensor& tensor, int64_t offset, std::span<std::byte> into);

 private:
  FileSystem& fs_;
  const Handle tag_;
  const NxdStates& states_;
  int input_ = -1;
  ScopedHandle file_;
};

}  // namespace ckptd
#endif  // CKPTD_CLIENT_CONVERT_NXD_STATE_H_
