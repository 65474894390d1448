// Reads what torch.save wrote: the object as a tree of plain data (value.h), and where in the file each
// storage's bytes lie. Those are read by whoever wants them, from the file itself.
//
// Nothing of the file is executed. The classes and functions that a pickle may name are a list (unpickler.h);
// any other is refused: FAILED_PRECONDITION, reason UNSAFE_PICKLE, with module and name.
//
// Files of torch 1.6 and later (ZIP, stored, little-endian). ZIP checksums are not looked at: torch does not
// either, and ckptd writes zeros (docs/decisions/0003). Errors name the file:
//   DATA_LOSS           CORRUPT_ARCHIVE      it is damaged, or made to deceive
//   UNIMPLEMENTED       UNSUPPORTED_ARCHIVE  of torch before 1.6, big-endian, compressed, encrypted,
//   TorchScript FAILED_PRECONDITION UNSAFE_PICKLE        it asks for what ckptd does not know
//   RESOURCE_EXHAUSTED  ARCHIVE_TOO_LARGE    beyond a limit (limits.h)
//   others              as the source's ReadAt ended
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
  // Those that the object refers to, in the order in which it first does. Each has its file_offset and lies
  // wholly in the file; no two share a byte.
  std::vector<StorageRef> storages;
  std::string name;  // Of the folder that everything in the ZIP lies in: "archive", or the file's stem.
};

// Reads the directory, the small records and data.pkl; no tensor. The source is not needed afterwards.
absl::StatusOr<Archive> OpenArchive(const ByteSource& source, const Limits& limits = {});

}  // namespace ckptd::torch
#endif  // CKPTD_CLIENT_FORMATS_TORCH_ARCHIVE_H_
