#include "storage/commit/shared/trials/node_files.h"

#include <cstddef>
#include <span>

#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

constexpr size_t kLongestRead = 1 << 20;

// Up to the end of the file, whatever size the client of a network file system remembers.
absl::StatusOr<std::string> ReadAll(FileSystem& fs, Handle directory, const std::string& path) {
  CKPTD_ASSIGN_OR_RETURN(const ScopedHandle file, OpenScoped(fs, directory, path, OpenMode::kRead));
  std::string bytes(kLongestRead, '\0');
  size_t size = 0;
  while (size < bytes.size()) {
    const std::span<std::byte> rest = std::as_writable_bytes(std::span(bytes)).subspan(size);
    CKPTD_ASSIGN_OR_RETURN(const size_t got, fs.ReadAt(file.get(), static_cast<int64_t>(size), rest));
    if (got == 0) break;
    size += got;
  }
  bytes.resize(size);
  return bytes;
}

}  // namespace

absl::Status NodeFiles::MakeDir(const std::string& path) { return fs_.MakeDir(folder_, path); }

absl::Status NodeFiles::Write(const std::string& path, const std::string& bytes) {
  return WriteNewFile(fs_, folder_, path, bytes);
}

absl::Status NodeFiles::Overwrite(const std::string& path, const std::string& bytes) {
  CKPTD_ASSIGN_OR_RETURN(const ScopedHandle file, OpenScoped(fs_, folder_, path, OpenMode::kUpdate));
  CKPTD_RETURN_IF_ERROR(WriteFully(fs_, file.get(), 0, std::as_bytes(std::span(bytes))));
  return fs_.Sync(file.get(), SyncMode::kData);
}

absl::Status NodeFiles::Rename(const std::string& from, const std::string& to) {
  return fs_.Rename(folder_, from, folder_, to, RenameMode::kReplace);
}

absl::StatusOr<std::string> NodeFiles::Read(const std::string& path) { return ReadAll(fs_, folder_, path); }

absl::StatusOr<int64_t> NodeFiles::Size(const std::string& path) {
  CKPTD_ASSIGN_OR_RETURN(const FileStat found, fs_.Stat(folder_, path));
  return found.size;
}

absl::StatusOr<uint64_t> NodeFiles::Inode(const std::string& path) {
  CKPTD_ASSIGN_OR_RETURN(const FileStat found, fs_.Stat(folder_, path));
  return found.inode;
}

void NodeFiles::AskForNames(const std::string& directory) {
  const absl::StatusOr<ScopedHandle> opened = OpenDir(directory);
  if (opened.ok()) fs_.Stat(opened->get(), "").IgnoreError();
}

std::vector<std::string> NodeFiles::List(const std::string& path) {
  const absl::StatusOr<ScopedHandle> opened = OpenDir(path);
  if (!opened.ok()) return {};
  const absl::StatusOr<std::vector<DirEntry>> entries = fs_.List(opened->get());
  std::vector<std::string> names;
  if (entries.ok()) {
    for (const DirEntry& entry : *entries) names.push_back(entry.name);
  }
  return names;
}

absl::StatusOr<ScopedHandle> NodeFiles::OpenDir(const std::string& path) {
  return OpenScoped(fs_, folder_, path, OpenMode::kDirectory);
}

absl::StatusOr<std::string> NodeFiles::ReadIn(const ScopedHandle& directory, const std::string& name) {
  return ReadAll(fs_, directory.get(), name);
}

void NodeFiles::RemoveAll(const std::string& path) {
  if (!fs_.Remove(folder_, path, FileType::kRegular).ok()) RemoveTree(fs_, folder_, path).IgnoreError();
}

void NodeFiles::RemoveEmptyDir(const std::string& path) {
  fs_.Remove(folder_, path, FileType::kDirectory).IgnoreError();
}

}  // namespace ckptd
