// Reads files of torch.save: gives the object as a tree of plain data (value.h), and where in the file each
// storage's bytes are. The caller reads those bytes from the file.
//
// Nothing in the file is executed. A pickle may name only the classes and functions of a fixed list
// (globals.h). Any other is refused with its module and name.
//
// Supports files of torch 1.6 and later (ZIP, stored, little-endian). ZIP checksums are ignored: torch
// ignores them, too, and ckptd writes zeros (docs/decisions/0003). Errors name the file:
//   DATA_LOSS            CORRUPT_ARCHIVE      the file is damaged or crafted
//   UNIMPLEMENTED        UNSUPPORTED_ARCHIVE  before 1.6, big-endian, compressed, encrypted, TorchScript
//   FAILED_PRECONDITION  UNSAFE_PICKLE        the pickle names a class or function that is not on the list
//   RESOURCE_EXHAUSTED   ARCHIVE_TOO_LARGE    a limit of limits.h is exceeded
//   others               the errors of the source's ReadAt
#ifndef CKPTD_CLIENT_FORMATS_TORCH_ARCHIVE_H_
#define CKPTD_CLIENT_FORMATS_TORCH_ARCHIVE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/formats/byte_source.h"
#include "client/formats/torch/limits.h"
#include "client/formats/torch/value.h"

namespace ckptd::torch {

struct Archive {
  ValueRef root;
  // The storages that the object refers to, in the order of the first reference. Each has its file_offset and
  // lies wholly in the file. No two share a byte.
  std::vector<StorageRef> storages;
  std::string name;  // The folder in the ZIP that holds everything: "archive", or the file's stem.
};

// Reads the directory, the small records and data.pkl, and no tensor. The source is not needed afterwards.
absl::StatusOr<Archive> OpenArchive(const ByteSource& source, const Limits& limits = {});

}  // namespace ckptd::torch
#endif  // CKPTD_CLIENT_FORMATS_TORCH_ARCHIVE_H_
