// The safetensors format: a length N of 8 bytes; N bytes of JSON, which give every tensor's name, dtype,
// shape and range; the tensors' bytes, without gaps. Little-endian.
//
// As with torch's files (client/formats/torch) the caller reads and writes the tensors' bytes by range.
//   DATA_LOSS           CORRUPT_ARCHIVE      the file is damaged: it violates the format
//   UNIMPLEMENTED       UNSUPPORTED_ARCHIVE  the file has a dtype that ckptd does not know
//   RESOURCE_EXHAUSTED  ARCHIVE_TOO_LARGE    the header has more than 100 MB, the format's own limit
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
  int64_t offset = 0;          // Of its first byte in the file. LayOut() computes it.
  int64_t bytes = 0;           // The dtype's size times the product of the shape. LayOut() computes it.
};

struct File {
  std::vector<Tensor> tensors;                  // Ordered by offset.
  std::map<std::string, std::string> metadata;  // The entry "__metadata__".
};

absl::StatusOr<File> Open(const ByteSource& source);

struct Layout {
  int64_t size = 0;             // Of the whole file.
  std::string header;           // The file's first bytes, with the length.
  std::vector<Tensor> tensors;  // With offset and bytes, ordered by offset.
};

// Lays out a file. Tensors of larger dtypes come first, so that all are aligned; otherwise they are ordered
// by name. Ignores the tensors' `offset` and `bytes`. INVALID_ARGUMENT if a name occurs twice or is
// "__metadata__", the format has no such dtype, a name or metadata is not UTF-8, or a shape is impossible.
absl::StatusOr<Layout> LayOut(File file);

}  // namespace ckptd::safetensors
#endif  // CKPTD_CLIENT_FORMATS_SAFETENSORS_SAFETENSORS_H_
