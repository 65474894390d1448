#include "client/ckptctl/nodes/node_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd::ctl {
namespace {

constexpr size_t kLongestRead = 1 << 20;

absl::Status Failed(const char* what, const std::string& path) {
  return ErrnoError(errno, absl::StrCat(what, " ", path));
}

absl::StatusOr<UniqueFd> Open(int directory, const std::string& path, int flags) {
  UniqueFd file(openat(directory, path.c_str(), flags | O_CLOEXEC, 0644));
  if (file.get() < 0) return Failed("opening", path);
  return file;
}

absl::StatusOr<std::string> ReadAll(const UniqueFd& file, const std::string& path) {
  std::string bytes(kLongestRead, '\0');
  size_t size = 0;
  while (size < bytes.size()) {
    const ssize_t got = read(file.get(), bytes.data() + size, bytes.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Failed("reading", path);
    if (got == 0) break;
    size += static_cast<size_t>(got);
  }
  bytes.resize(size);
  return bytes;
}

absl::Status WriteAll(UniqueFd file, const std::string& path, const std::string& bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t put =
        pwrite(file.get(), bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return Failed("writing", path);
    done += static_cast<size_t>(put);
  }
  if (fsync(file.get()) != 0) return Failed("syncing", path);
  if (close(file.release()) != 0) return Failed("closing", path);
  return absl::OkStatus();
}

}  // namespace

absl::Status NodeFiles::MakeDir(const std::string& path) {
  return mkdir(path.c_str(), 0755) == 0 ? absl::OkStatus() : Failed("making", path);
}

absl::Status NodeFiles::Write(const std::string& path, const std::string& bytes) {
  CKPTD_ASSIGN_OR_RETURN(UniqueFd file, Open(AT_FDCWD, path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW));
  return WriteAll(std::move(file), path, bytes);
}

absl::Status NodeFiles::Overwrite(const std::string& path, const std::string& bytes) {
  CKPTD_ASSIGN_OR_RETURN(UniqueFd file, Open(AT_FDCWD, path, O_WRONLY | O_NOFOLLOW));
  return WriteAll(std::move(file), path, bytes);
}

absl::Status NodeFiles::Rename(const std::string& from, const std::string& to) {
  return rename(from.c_str(), to.c_str()) == 0 ? absl::OkStatus()
                                               : Failed("renaming", absl::StrCat(from, " to ", to));
}

absl::StatusOr<std::string> NodeFiles::Read(const std::string& path) {
  CKPTD_ASSIGN_OR_RETURN(const UniqueFd file, Open(AT_FDCWD, path, O_RDONLY | O_NOFOLLOW));
  return ReadAll(file, path);
}

absl::StatusOr<int64_t> NodeFiles::Size(const std::string& path) {
  struct stat found {};
  if (lstat(path.c_str(), &found) != 0) return Failed("looking at", path);
  return found.st_size;
}

absl::StatusOr<uint64_t> NodeFiles::Inode(const std::string& path) {
  struct stat found {};
  if (lstat(path.c_str(), &found) != 0) return Failed("looking at", path);
  return found.st_ino;
}

void NodeFiles::AskForNames(const std::string& directory) {
  struct statx ignored {};
  (void)statx(AT_FDCWD, directory.c_str(), AT_STATX_FORCE_SYNC, STATX_BASIC_STATS, &ignored);
}

std::vector<std::string> NodeFiles::List(const std::string& path) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(path, error), end; !error && entry != end;
       entry.increment(error))
    names.push_back(entry->path().filename());
  return names;
}

absl::StatusOr<UniqueFd> NodeFiles::OpenDir(const std::string& path) {
  return Open(AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
}

absl::StatusOr<std::string> NodeFiles::ReadIn(const UniqueFd& directory, const std::string& name) {
  CKPTD_ASSIGN_OR_RETURN(const UniqueFd file, Open(directory.get(), name, O_RDONLY | O_NOFOLLOW));
  return ReadAll(file, name);
}

void NodeFiles::RemoveAll(const std::string& path) {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

void NodeFiles::RemoveEmptyDir(const std::string& path) { (void)rmdir(path.c_str()); }

}  // namespace ckptd::ctl
