// The directory of a ZIP archive as torch writes them: stored records, with ZIP64 where it takes that.
//
// A record's place comes from the central directory; its local header must agree. What is returned lies in
// the file, no two records share a byte, and no name is there twice (also not in upper case: torch finds
// records by either). Errors as in archive.h, without the file's name.
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

// In the order of the directory. `most_bytes`: of a directory.
absl::StatusOr<std::vector<ZipRecord>> ReadZipDirectory(const ByteSource& source, int64_t most_bytes);

}  // namespace ckptd::torch
#endif  // CKPTD_CLIENT_FORMATS_TORCH_ZIP_DIRECTORY_H_
