#include "client/convert/files/open_archive.h"

#include <utility>

#include "client/formats/byte_source.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

// A ByteSource on a range of a file of a FileSystem.
class FileSource : public ByteSource {
 public:
  FileSource(FileSystem& fs, Handle file, std::string name, int64_t offset, int64_t size)
      : fs_(fs), file_(file), name_(std::move(name)), offset_(offset), size_(size) {}
  const std::string& name() const override { return name_; }
  int64_t size() const override { return size_; }
  absl::Status ReadAt(int64_t offset, std::span<std::byte> into) const override {
    return ReadFully(fs_, file_, offset_ + offset, into);
  }

 private:
  FileSystem& fs_;
  const Handle file_;
  const std::string name_;
  const int64_t offset_;
  const int64_t size_;
};

}  // namespace

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
