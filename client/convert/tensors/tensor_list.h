// Lists the tensors in a checkpoint's files, whatever framework has written them: files of torch.save (NxD, DeepSpeed,
// plain PyTorch), safetensors, and PyTorch Distributed Checkpoint. Reads their headers and pickles, and no tensor.
#ifndef CKPTD_CLIENT_CONVERT_TENSORS_TENSOR_LIST_H_
#define CKPTD_CLIENT_CONVERT_TENSORS_TENSOR_LIST_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/formats/data_type.h"
#include "storage/fs/file_system.h"

namespace ckptd {

struct ListedTensor {
  std::string name;  // Its keys and indices in the file's object, joined by dots.
  std::optional<DataType> dtype =
      std::nullopt;  // Unset for a reference to a tensor in a file of its own (NxD's use_xser).
  std::vector<int64_t> shape = {};
  int64_t bytes = 0;
  std::string file =
      {};  // Relative to the directory; of a distributed checkpoint the first of its chunks' files.
  int64_t chunks = 1;  // In how many parts it was saved.
};

struct TensorList {
  std::vector<ListedTensor> tensors;  // By file, in the order of the file.
  int64_t elements = 0;
  int64_t bytes = 0;
  std::vector<std::string>
      unread;  // "FILE: why" of each file that looks like one with tensors and cannot be read.
};

// Lists the files beneath `dir`, without those of ckptd itself. Files of other kinds are skipped. Blocks. Errors are
// those of the file system.
absl::StatusOr<TensorList> ListTensors(FileSystem& fs, Handle dir);

}  // namespace ckptd
#endif  // CKPTD_CLIENT_CONVERT_TENSORS_TENSOR_LIST_H_
