// Opens a file of torch.save beneath a directory of a FileSystem.
#ifndef CKPTD_CLIENT_CONVERT_FILES_OPEN_ARCHIVE_H_
#define CKPTD_CLIENT_CONVERT_FILES_OPEN_ARCHIVE_H_

#include <string>

#include "absl/status/statusor.h"
#include "client/formats/torch/archive.h"
#include "storage/fs/file_system.h"

namespace ckptd {

// Reads the pickle and no tensor. The errors are those of torch::OpenArchive, and name the file.
absl::StatusOr<torch::Archive> OpenArchiveAt(FileSystem& fs, Handle dir, const std::string& path);

}  // namespace ckptd
#endif  // CKPTD_CLIENT_CONVERT_FILES_OPEN_ARCHIVE_H_
