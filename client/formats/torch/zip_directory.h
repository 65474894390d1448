// Reads the directory of a ZIP archive as torch writes it: stored records, with ZIP64 where needed.
//
// A record's position comes from the central directory, and its local header must agree. All returned records
// lie in the file, no two share a byte, and no name occurs twice (also not in another case: torch ignores
// case). Errors are those of archive.h, without the file's name.
#ifndef CKPTD_CLIENT_FORMATS_TORCH_ZIP_DIRECTORY_H_
#define CKPTD_CLIENT_FORMATS_TORCH_ZIP_DIRECTORY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/formats/byte_source.h"

namespace ckptd::torch {

struct ZipRecord {
  std::string name;
  int64_t offset = 0;  // Of its first byte in the file.
  int64_t size = 0;
};

// In the order of the directory, which may have at most `most_bytes` bytes.
absl::StatusOr<std::vector<ZipRecord>> ReadZipDirectory(const ByteSource& source, int64_t most_bytes);

}  // namespace ckptd::torch
#endif  // CKPTD_CLIENT_FORMATS_TORCH_ZIP_DIRECTORY_H_
