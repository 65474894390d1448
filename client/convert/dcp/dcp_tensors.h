// Reads where the bytes of a distributed checkpoint's tensors and values are in its `.distcp` files.
#ifndef CKPTD_CLIENT_CONVERT_DCP_DCP_TENSORS_H_
#define CKPTD_CLIENT_CONVERT_DCP_DCP_TENSORS_H_

#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "client/convert/dcp/dcp_metadata.h"
#include "client/convert/files/plan_archive.h"
#include "client/formats/torch/archive.h"
#include "storage/fs/file_system.h"

namespace ckptd {

// Opens the archives of entries, and reads no tensor. One thread at a time. Errors name the entry.
class DcpTensors {
 public:
  DcpTensors(FileSystem& fs, Handle dir) : fs_(fs), dir_(dir) {}

  // The elements of a tensor, in order. CANNOT_CONVERT if a chunk is not as `.metadata` says, or as of JoinChunks.
  // Other errors are those of client/formats/torch/archive.h.
  absl::StatusOr<std::vector<SourceRange>> Locate(const DcpEntry& tensor);

  // The object of a value. Appends where the bytes of its tensors are to `contents`.
  absl::StatusOr<torch::ValueRef> ReadValue(const DcpEntry& value, Contents& contents);

  // The files that the ranges refer to, relative to the checkpoint.
  const std::vector<std::string>& inputs() const { return inputs_; }

 private:
  absl::StatusOr<torch::Archive> Open(const DcpPlace& place);
  int InputOf(const std::string& path);

  FileSystem& fs_;
  const Handle dir_;
  std::vector<std::string> inputs_;
  std::unordered_map<std::string, int> input_of_;
};

}  // namespace ckptd
#endif  // CKPTD_CLIENT_CONVERT_DCP_DCP_TENSORS_H_
