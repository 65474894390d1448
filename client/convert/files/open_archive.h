// Opens a file of torch.save beneath a directory of a FileSystem.
#ifndef CKPTD_CLIENT_CONVERT_FILES_OPEN_ARCHIVE_H_
#define CKPTD_CLIENT_CONVERT_FILES_OPEN_ARCHIVE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "client/formats/torch/archive.h"
#include "storage/fs/file_system.h"

namespace ckptd {

// Reads the pickle and no tensor. The errors are those of torch::OpenArchive, and name the file.
absl::StatusOr<torch::Archive> OpenArchiveAt(FileSystem& fs, Handle dir, const std::string& path);

// Opens an archive that is `size` bytes of an open file, from `offset` on. The offsets in the result count from the
// start of the file. `name` is for messages.
absl::StatusOr<torch::Archive> OpenArchiveWithin(FileSystem& fs, Handle file, const std::string& name,
                                                 int64_t offset, int64_t size);

}  // namespace ckptd
#endif  // CKPTD_CLIENT_CONVERT_FILES_OPEN_ARCHIVE_H_
