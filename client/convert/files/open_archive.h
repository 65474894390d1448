// Opens a file of torch.save beneath a directory of a FileSystem.
#ifndef CKPTD_CLIENT_CONVERT_FILES_OPEN_ARCHIVE_H_
#define CKPTD_CLIENT_CONVERT_FILES_OPEN_ARCHIVE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "client/formats/byte_source.h"
#include "client/formats/torch/archive.h"
#include "storage/fs/file_system.h"

namespace ckptd {

// A range of a file of a FileSystem. The handle must outlive it.
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

// Reads the pickle and no tensor. The errors are those of torch::OpenArchive, and name the file.
absl::StatusOr<torch::Archive> OpenArchiveAt(FileSystem& fs, Handle dir, const std::string& path);

// Opens an archive that is `size` bytes of an open file, from `offset` on. The offsets in the result count from the
// start of the file. `name` is for messages.
absl::StatusOr<torch::Archive> OpenArchiveWithin(FileSystem& fs, Handle file, const std::string& name,
                                                 int64_t offset, int64_t size);

}  // namespace ckptd
#endif  // CKPTD_CLIENT_CONVERT_FILES_OPEN_ARCHIVE_H_
