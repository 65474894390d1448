#include "client/convert/files/open_archive.h"

#include <utility>

#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd {

absl::StatusOr<torch::Archive> OpenArchiveAt(FileSystem& fs, Handle dir, const std::string& path) {
  CKPTD_ASSIGN_OR_RETURN(const ScopedHandle file, OpenScoped(fs, dir, path, OpenMode::kRead));
  CKPTD_ASSIGN_OR_RETURN(const FileStat stat, fs.Stat(file.get(), ""));
  return torch::OpenArchive(FileSource(fs, file.get(), path, 0, stat.size));
}

absl::StatusOr<torch::Archive> OpenArchiveWithin(FileSystem& fs, Handle file, const std::string& name,
                                                 int64_t offset, int64_t size) {
  CKPTD_ASSIGN_OR_RETURN(torch::Archive archive,
                         torch::OpenArchive(FileSource(fs, file, name, offset, size)));
  for (const torch::StorageRef& storage : archive.storages) storage->file_offset += offset;
  return archive;
}

}  // namespace ckptd
