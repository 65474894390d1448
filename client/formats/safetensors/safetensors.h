// The safetensors format: 8 bytes, a length N; N bytes of JSON, which name every tensor with its dtype, shape
// and range; the tensors' bytes, without gaps. Little-endian.
//
// As with torch's files (client/formats/torch), tensors are read and written by range, by the caller.
//   DATA_LOSS           CORRUPT_ARCHIVE      it is damaged: what the format asks for does not hold
//   UNIMPLEMENTED       UNSUPPORTED_ARCHIVE  a dtype that ckptd does not know
//   RESOURCE_EXHAUSTED  ARCHIVE_TOO_LARGE    a header of more than 100 MB, the format's own limit
#ifndef CKPTD_CLIENT_FORMATS_SAFETENSORS_SAFETENSORS_H_
#define CKPTD_CLIENT_FORMATS_SAFETENSORS_SAFETENSORS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/formats/byte_source.h"
#include "client/formats/data_type.h"

namespace ckptd::safetensors {

struct Tensor {
  std::string name;
  DataType dtype = DataType::kFloat32;
  std::vector<int64_t> shape;  // In elements of `dtype`, as torch counts them.
  int64_t offset = 0;          // In the file. To be written: filled in by LayOut().
  int64_t bytes = 0;           // Its dtype's size times the product of the shape; by LayOut(), too.
};

struct File {
  std::vector<Tensor> tensors;                  // In the order of their offsets.
  std::map<std::string, std::string> metadata;  // "__metadata__".
};

absl::StatusOr<File> Open(const ByteSource& source);

struct Layout {
  int64_t size = 0;             // Of the whole file.
  std::string header;           // Its first bytes, length included.
  std::vector<Tensor> tensors;  // With offset and bytes, in the order of their offsets.
};

// Tensors of larger dtypes come first, so that all are aligned, then by name. Their offset and bytes are not
// looked at. INVALID_ARGUMENT, reason INVALID_ARGUMENT: a name twice or "__metadata__", a dtype that the
// format does not have, a name or metadata that is no UTF-8, a shape that cannot be.
absl::StatusOr<Layout> LayOut(File file);

}  // namespace ckptd::safetensors
#endif  // CKPTD_CLIENT_FORMATS_SAFETENSORS_SAFETENSORS_H_
