// The file `.metadata` of a checkpoint of PyTorch Distributed Checkpoint (DCP): a pickle of
// torch.distributed.checkpoint.metadata.Metadata, which says where in the `.distcp` files each tensor and value is.
//
//   state_dict_metadata   name -> a tensor's dtype, shape and chunks, or "a value"
//   planner_data          name -> the path of the entry in the nested state dict that was saved
//   storage_data          (name, offsets of the chunk) -> file, offset, length
//
// Source: torch/distributed/checkpoint/{metadata,filesystem}.py of torch 2.13, which reads what is written here.
#ifndef CKPTD_CLIENT_CONVERT_DCP_DCP_METADATA_H_
#define CKPTD_CLIENT_CONVERT_DCP_DCP_METADATA_H_

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "client/formats/data_type.h"
#include "storage/fs/file_system.h"

namespace ckptd {

inline constexpr char kDcpMetadata[] = ".metadata";

// A run of bytes of a `.distcp` file: one archive of torch.save.
struct DcpPlace {
  std::string path;
  int64_t offset = 0;
  int64_t size = 0;
};

// A box of a tensor's elements.
struct DcpChunk {
  std::vector<int64_t> offsets;  // Of its first element in the tensor.
  std::vector<int64_t> sizes;
  DcpPlace place;
};

// A key of a dict, or an index into a list.
using DcpStep = std::variant<std::string, int64_t>;

// A tensor, or a value, which is any other object.
struct DcpEntry {
  std::string name;           // Unique; torch calls it the fully qualified name (FQN).
  std::vector<DcpStep> path;  // In the state dict. Not empty.
  bool is_tensor = false;
  // Of a tensor:
  DataType dtype = DataType::kFloat32;
  bool requires_grad = false;
  std::vector<int64_t> shape;
  std::vector<DcpChunk> chunks;
  // Of a value:
  DcpPlace value;
};

// Reads `.metadata` of the checkpoint whose directory is `dir`, in the order of the file. Nothing in the pickle runs.
//   FAILED_PRECONDITION  CANNOT_CONVERT   there is no .metadata; or the bytes were compressed or otherwise transformed
//   DATA_LOSS            CORRUPT_ARCHIVE  the pickle is damaged, or does not say where each chunk is
// Other errors are those of client/formats/torch/archive.h. All name the file.
absl::StatusOr<std::vector<DcpEntry>> ReadDcpMetadata(FileSystem& fs, Handle dir);

// The content of `.metadata` for `entries`. Errors as of torch::Pickle.
absl::StatusOr<std::string> WriteDcpMetadata(const std::vector<DcpEntry>& entries);

}  // namespace ckptd
#endif  // CKPTD_CLIENT_CONVERT_DCP_DCP_METADATA_H_
