#include "storage/fs/posix_file_system.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/base/unique_fd.h"
#include "storage/fs/acting_as.h"

namespace ckptd {
namespace {

constexpr mode_t kLockRights = 0600;
constexpr uint64_t kBeneath = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;

// Repeats a system call that a signal interrupted before it had an effect.
template <typename Call>
auto Uninterrupted(Call call) {
  for (;;) {
    const auto result = call();
    if (result != -1 || errno != EINTR) return result;
  }
}

int OpenAt2(int dir, const char* path, uint64_t flags, uint64_t mode, uint64_t resolve) {
  open_how how = {};
  how.flags = flags | O_CLOEXEC;
  how.mode = mode;
  how.resolve = resolve;
  return static_cast<int>(
      Uninterrupted([&] { return ::syscall(SYS_openat2, dir, path, &how, sizeof(how)); }));
}

// The error of OpenAt2. ENOSYS gets advice, because alone it would tell an operator nothing.
absl::Status OpenError(int error, const std::string& what) {
  if (error != ENOSYS) return ErrnoError(error, what);
  return Annotate(
      ErrnoError(error, what),
      "openat2 is refused; it needs Linux 5.6, a seccomp profile that knows it, and a unit without "
      "RestrictSUIDSGID");
}

// EINVAL for a path with NUL or an empty component, EXDEV for one with `..` or an absolute one: errors that
// the kernel would give as well, but not in every case.
absl::Status CheckPath(std::string_view path) {
  const auto refuse = [&](int error) {
    return ErrnoError(error, absl::StrCat("path '", std::string(path.substr(0, path.find('\0'))), "'"));
  };
  if (path.empty() || path.find('\0') != std::string_view::npos) return refuse(EINVAL);
  if (path.front() == '/') return refuse(EXDEV);
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view name = path.substr(begin, end - begin);
    if (name.empty()) return refuse(EINVAL);
    if (name == "..") return refuse(EXDEV);
    begin = end + 1;
  }
  return absl::OkStatus();
}

// The directory that holds a path's last component, and that component.
struct Parent {
  UniqueFd opened;  // Unset: the directory that was given.
  int dir = -1;
  std::string name;
};

absl::StatusOr<Parent> OpenParent(Handle dir, std::string_view path) {
  CKPTD_RETURN_IF_ERROR(CheckPath(path));
  Parent parent;
  parent.dir = dir;
  const size_t slash = path.rfind('/');
  parent.name = path.substr(slash == std::string_view::npos ? 0 : slash + 1);
  if (parent.name == ".") return ErrnoError(EINVAL, absl::StrCat("path '", std::string(path), "'"));
  if (slash != std::string_view::npos) {
    const std::string above(path.substr(0, slash));
    parent.opened = UniqueFd(OpenAt2(dir, above.c_str(), O_PATH | O_DIRECTORY, 0, kBeneath));
    if (!parent.opened) return OpenError(errno, absl::StrCat("opening directory ", above));
    parent.dir = parent.opened.get();
  }
  return parent;
}

FileType TypeOf(mode_t mode) {
  if (S_ISREG(mode)) return FileType::kRegular;
  if (S_ISDIR(mode)) return FileType::kDirectory;
  if (S_ISLNK(mode)) return FileType::kSymlink;
  return FileType::kOther;
}

// Unset: the file system does not store types in its directories.
std::optional<FileType> TypeOf(unsigned char dirent_type) {
  switch (dirent_type) {
    case DT_REG:
      return FileType::kRegular;
    case DT_DIR:
      return FileType::kDirectory;
    case DT_LNK:
      return FileType::kSymlink;
    case DT_UNKNOWN:
      return std::nullopt;
    default:
      return FileType::kOther;
  }
}

int64_t Nanoseconds(const struct statx_timestamp& time) {
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

absl::StatusOr<FileStat> FileStatOf(int dir, const char* name, int flags, std::string_view what) {
  struct statx found;
  if (::statx(dir, name, flags, STATX_BASIC_STATS, &found) != 0) {
    return ErrnoError(errno, absl::StrCat("examining ", std::string(what)));
  }
  return FileStat{.type = TypeOf(mode_t{found.stx_mode}),
                  .size = static_cast<int64_t>(found.stx_size),
                  .uid = found.stx_uid,
                  .device = ::makedev(found.stx_dev_major, found.stx_dev_minor),
                  .inode = found.stx_ino,
                  .modified_ns = Nanoseconds(found.stx_mtime),
                  .changed_ns = Nanoseconds(found.stx_ctime)};
}

std::string FileSystemName(uint64_t magic) {
  switch (magic) {
    case EXT4_SUPER_MAGIC:
      return "ext4";
    case XFS_SUPER_MAGIC:
      return "xfs";
    case BTRFS_SUPER_MAGIC:
      return "btrfs";
    case F2FS_SUPER_MAGIC:
      return "f2fs";
    case TMPFS_MAGIC:
      return "tmpfs";
    case RAMFS_MAGIC:
      return "ramfs";
    case OVERLAYFS_SUPER_MAGIC:
      return "overlay";
    case NFS_SUPER_MAGIC:
      return "nfs";
    case FUSE_SUPER_MAGIC:
      return "fuse";
    case CEPH_SUPER_MAGIC:
      return "ceph";
    case 0x0bd00bd0:
      return "lustre";
    case 0x2fc12fc1:
      return "zfs";
    case 0x47504653:
      return "gpfs";
    default:
      return absl::StrCat("0x", absl::Hex(magic));
  }
}

class PosixFileSystem : public FileSystem {
 public:
  PosixFileSystem(Actor actor, std::shared_ptr<const std::atomic<mode_t>> umask)
      : actor_(std::move(actor)), umask_(std::move(umask)) {}

  absl::StatusOr<Handle> Open(Handle dir, std::string_view path, OpenMode mode) override;
  absl::Status Close(Handle handle) override;
  absl::Status MakeDir(Handle dir, std::string_view path) override;
  absl::Status Remove(Handle dir, std::string_view path, FileType type) override;
  absl::Status Rename(Handle old_dir, std::string_view old_path, Handle new_dir, std::string_view new_path,
                      RenameMode mode) override;
  absl::Status Share(Handle file, Handle dir, std::string_view path) override;
  absl::StatusOr<std::vector<DirEntry>> List(Handle dir) override;
  absl::StatusOr<FileStat> Stat(Handle dir, std::string_view path) override;
  absl::Status Allocate(Handle file, int64_t size) override;
  absl::Status Truncate(Handle file, int64_t size) override;
  absl::Status Sync(Handle handle, SyncMode mode) override;
  absl::StatusOr<size_t> ReadAt(Handle file, int64_t offset, std::span<std::byte> into) override;
  absl::StatusOr<size_t> WriteAt(Handle file, int64_t offset, std::span<const std::byte> from) override;
  absl::Status Lock(Handle file) override;
  absl::StatusOr<SpaceInfo> Space(Handle dir) override;

 private:
  // `mode` without the bits that the user's umask takes from group and others. The owner's bits stay, because
  // this process has only the user's rights.
  mode_t Masked(mode_t mode) const {
    return mode & ~(umask_ != nullptr ? umask_->load() & 077 : mode_t{022});
  }

  const Actor actor_;
  const std::shared_ptr<const std::atomic<mode_t>> umask_;  // Null: 022.
};

uint64_t FlagsOf(OpenMode mode) {
  switch (mode) {
    case OpenMode::kRead:
      return O_RDONLY;
    case OpenMode::kReadDirect:
      return O_RDONLY | O_DIRECT;
    case OpenMode::kCreate:
      return O_RDWR | O_CREAT | O_EXCL;
    case OpenMode::kCreateDirect:
      return O_RDWR | O_CREAT | O_EXCL | O_DIRECT;
    case OpenMode::kUpdate:
    case OpenMode::kLock:
      return O_RDWR | O_CREAT;
    case OpenMode::kDirectory:
      return O_RDONLY | O_DIRECTORY;
  }
  return 0;
}

// Refuses a FIFO or a device where a file should be; opening one must not hang. So the file is opened with
// O_NONBLOCK, and the flag is cleared here: with it io_uring would fail with EAGAIN instead of waiting.
absl::Status RequireRegular(int fd, uint64_t flags, const std::string& path) {
  struct stat stat;
  if (::fstat(fd, &stat) != 0) return ErrnoError(errno, absl::StrCat("examining ", path));
  if (S_ISDIR(stat.st_mode)) return ErrnoError(EISDIR, absl::StrCat("opening ", path));
  if (!S_ISREG(stat.st_mode)) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "NOT_A_FILE",
                     absl::StrCat(path, " is neither a regular file nor a directory"));
  }
  if (::fcntl(fd, F_SETFL, static_cast<int>(flags & O_DIRECT)) != 0) {
    return ErrnoError(errno, absl::StrCat("opening ", path));
  }
  return absl::OkStatus();
}

absl::Status Locked() {
  return MakeError(absl::StatusCode::kFailedPrecondition, "LOCKED", "another process holds the lock");
}

// True for the errors of kernels and file systems that lack a kind of lock.
bool IsMissing(int error) {
  return error == EINVAL || error == ENOSYS || error == EOPNOTSUPP || error == ENOLCK;
}

// ckptd 0.1.0 made lock files that every user could read, and therefore could lock. Best effort: the file of
// another user stays as it is.
void HideLock(int fd) {
  struct stat stat;
  if (::fstat(fd, &stat) == 0 && (stat.st_mode & 0777 & ~kLockRights) != 0) {
    if (::fchmod(fd, kLockRights) != 0) return;
  }
}

absl::StatusOr<Handle> PosixFileSystem::Open(Handle dir, std::string_view path, OpenMode mode) {
  CKPTD_RETURN_IF_ERROR(CheckPath(path));
  const Actor::Scope acting(actor_);
  CKPTD_RETURN_IF_ERROR(acting.status());
  const std::string name(path);
  const uint64_t flags = FlagsOf(mode);
  const bool existing_file = mode == OpenMode::kRead || mode == OpenMode::kReadDirect ||
                             mode == OpenMode::kUpdate || mode == OpenMode::kLock;
  const mode_t rights = mode == OpenMode::kLock ? kLockRights : Masked(0666);
  UniqueFd fd(OpenAt2(dir, name.c_str(), flags | (existing_file ? O_NONBLOCK : 0),
                      flags & O_CREAT ? rights : 0, kBeneath));
  if (!fd) return OpenError(errno, absl::StrCat("opening ", name));
  if (existing_file) CKPTD_RETURN_IF_ERROR(RequireRegular(fd.get(), flags, name));
  if (mode == OpenMode::kLock) HideLock(fd.get());
  return fd.release();
}

absl::Status PosixFileSystem::Close(Handle handle) {
  // Linux has closed the descriptor whatever it returns, also with EINTR.
  if (::close(handle) != 0 && errno != EINTR) return ErrnoError(errno, "closing");
  return absl::OkStatus();
}

absl::Status PosixFileSystem::MakeDir(Handle dir, std::string_view path) {
  const Actor::Scope acting(actor_);
  CKPTD_RETURN_IF_ERROR(acting.status());
  CKPTD_ASSIGN_OR_RETURN(const Parent parent, OpenParent(dir, path));
  if (::mkdirat(parent.dir, parent.name.c_str(), Masked(0777)) != 0) {
    return ErrnoError(errno, absl::StrCat("making directory ", std::string(path)));
  }
  return absl::OkStatus();
}

absl::Status PosixFileSystem::Remove(Handle dir, std::string_view path, FileType type) {
  const Actor::Scope acting(actor_);
  CKPTD_RETURN_IF_ERROR(acting.status());
  CKPTD_ASSIGN_OR_RETURN(const Parent parent, OpenParent(dir, path));
  if (::unlinkat(parent.dir, parent.name.c_str(), type == FileType::kDirectory ? AT_REMOVEDIR : 0) != 0) {
    return ErrnoError(errno, absl::StrCat("removing ", std::string(path)));
  }
  return absl::OkStatus();
}

absl::Status PosixFileSystem::Rename(Handle old_dir, std::string_view old_path, Handle new_dir,
                                     std::string_view new_path, RenameMode mode) {
  const Actor::Scope acting(actor_);
  CKPTD_RETURN_IF_ERROR(acting.status());
  CKPTD_ASSIGN_OR_RETURN(const Parent from, OpenParent(old_dir, old_path));
  CKPTD_ASSIGN_OR_RETURN(const Parent to, OpenParent(new_dir, new_path));
  const unsigned flags = mode == RenameMode::kExchange    ? RENAME_EXCHANGE
                         : mode == RenameMode::kNoReplace ? RENAME_NOREPLACE
                                                          : 0;
  if (::renameat2(from.dir, from.name.c_str(), to.dir, to.name.c_str(), flags) != 0) {
    return ErrnoError(errno, absl::StrCat("renaming ", std::string(old_path), " to ", std::string(new_path)));
  }
  return absl::OkStatus();
}

absl::Status PosixFileSystem::Share(Handle file, Handle dir, std::string_view path) {
  const Actor::Scope acting(actor_);
  CKPTD_RETURN_IF_ERROR(acting.status());
  CKPTD_ASSIGN_OR_RETURN(const Parent parent, OpenParent(dir, path));
  const char* const name = parent.name.c_str();
  const UniqueFd made(
      OpenAt2(parent.dir, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, Masked(0666), kBeneath));
  if (!made) return OpenError(errno, absl::StrCat("creating ", std::string(path)));
  if (::ioctl(made.get(), FICLONE, file) == 0) return absl::OkStatus();
  // What is linked is the open file, whatever its name has become. (AT_EMPTY_PATH needs a capability.)
  const std::string source = absl::StrCat("/proc/self/fd/", file);
  if (::unlinkat(parent.dir, name, 0) != 0 ||
      ::linkat(AT_FDCWD, source.c_str(), parent.dir, name, AT_SYMLINK_FOLLOW) != 0)
    return ErrnoError(errno, absl::StrCat("linking ", std::string(path)));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<DirEntry>> PosixFileSystem::List(Handle dir) {
  const Actor::Scope acting(actor_);
  CKPTD_RETURN_IF_ERROR(acting.status());
  // A file description of its own: two threads that list one directory must not share a position.
  UniqueFd fd(OpenAt2(dir, ".", O_RDONLY | O_DIRECTORY, 0, kBeneath));
  if (!fd) return ErrnoError(errno, "opening a directory to list it");
  DIR* stream = ::fdopendir(fd.get());
  if (stream == nullptr) return ErrnoError(errno, "listing a directory");
  fd.release();
  const absl::Cleanup close = [stream] { ::closedir(stream); };

  std::vector<DirEntry> entries;
  for (;;) {
    errno = 0;
    const dirent* entry = ::readdir(stream);
    if (entry == nullptr) {
      if (errno != 0) return ErrnoError(errno, "listing a directory");
      break;
    }
    const std::string_view name = entry->d_name;
    if (name == "." || name == "..") continue;
    std::optional<FileType> type = TypeOf(entry->d_type);
    if (!type.has_value()) {
      struct stat stat;
      if (::fstatat(dir, entry->d_name, &stat, AT_SYMLINK_NOFOLLOW) != 0) {
        if (errno == ENOENT) continue;  // It was removed meanwhile.
        return ErrnoError(errno, absl::StrCat("examining ", std::string(name)));
      }
      type = TypeOf(stat.st_mode);
    }
    entries.push_back({std::string(name), *type});
  }
  std::sort(entries.begin(), entries.end(),
            [](const DirEntry& a, const DirEntry& b) { return a.name < b.name; });
  return entries;
}

absl::StatusOr<FileStat> PosixFileSystem::Stat(Handle dir, std::string_view path) {
  // A client of a network file system that hears of a change looks up the names of the directory anew.
  if (path.empty()) return FileStatOf(dir, "", AT_EMPTY_PATH | AT_STATX_FORCE_SYNC, "an open file");
  const Actor::Scope acting(actor_);
  CKPTD_RETURN_IF_ERROR(acting.status());
  CKPTD_ASSIGN_OR_RETURN(const Parent parent, OpenParent(dir, path));
  return FileStatOf(parent.dir, parent.name.c_str(), AT_SYMLINK_NOFOLLOW, path);
}

// Operations that take space run as the user, for quotas and for the blocks that a file system reserves for
// root.
absl::Status PosixFileSystem::Allocate(Handle file, int64_t size) {
  const Actor::Scope acting(actor_);
  CKPTD_RETURN_IF_ERROR(acting.status());
  if (Uninterrupted([&] { return ::fallocate(file, 0, 0, size); }) != 0) {
    return ErrnoError(errno, absl::StrCat("allocating ", size, " bytes"));
  }
  return absl::OkStatus();
}

absl::Status PosixFileSystem::Truncate(Handle file, int64_t size) {
  const Actor::Scope acting(actor_);
  CKPTD_RETURN_IF_ERROR(acting.status());
  if (Uninterrupted([&] { return ::ftruncate(file, size); }) != 0) {
    return ErrnoError(errno, absl::StrCat("cutting to ", size, " bytes"));
  }
  return absl::OkStatus();
}

absl::Status PosixFileSystem::Sync(Handle handle, SyncMode mode) {
  if (mode == SyncMode::kBegin) {
    // Not every file system knows it. An error of the disk is one of this file.
    if (::sync_file_range(handle, 0, 0, SYNC_FILE_RANGE_WRITE) == 0 || errno == EINVAL || errno == ENOSYS)
      return absl::OkStatus();
    return ErrnoError(errno, "beginning to write to the disk");
  }
  // Never repeated, not even after EINTR: a second sync may succeed although the first one has lost the data.
  if ((mode == SyncMode::kData ? ::fdatasync(handle) : ::fsync(handle)) != 0) {
    return ErrnoError(errno, "syncing");
  }
  return absl::OkStatus();
}

absl::StatusOr<size_t> PosixFileSystem::ReadAt(Handle file, int64_t offset, std::span<std::byte> into) {
  const ssize_t n = Uninterrupted([&] { return ::pread(file, into.data(), into.size(), offset); });
  if (n < 0) return ErrnoError(errno, absl::StrCat("reading at byte ", offset));
  return static_cast<size_t>(n);
}

absl::StatusOr<size_t> PosixFileSystem::WriteAt(Handle file, int64_t offset,
                                                std::span<const std::byte> from) {
  const Actor::Scope acting(actor_);
  CKPTD_RETURN_IF_ERROR(acting.status());
  const ssize_t n = Uninterrupted([&] { return ::pwrite(file, from.data(), from.size(), offset); });
  if (n < 0) return ErrnoError(errno, absl::StrCat("writing at byte ", offset));
  return static_cast<size_t>(n);
}

// Takes an open file description lock and a flock. ckptd 0.1.0 knows only the latter, so daemons of both
// versions notice each other. The first needs a descriptor that is open for writing. The second does not, so
// nobody else may be able to open the file (kLockRights). A file system may lack either.
absl::Status PosixFileSystem::Lock(Handle file) {
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  const int exclusive = Uninterrupted([&] { return ::fcntl(file, F_OFD_SETLK, &whole); }) == 0 ? 0 : errno;
  if (exclusive == EAGAIN || exclusive == EACCES) return Locked();
  if (exclusive != 0 && !IsMissing(exclusive)) return ErrnoError(exclusive, "locking");
  const int legacy = Uninterrupted([&] { return ::flock(file, LOCK_EX | LOCK_NB); }) == 0 ? 0 : errno;
  if (legacy != 0 && exclusive == 0 && !IsMissing(legacy)) {
    whole.l_type = F_UNLCK;  // Releases the first lock if the second was refused.
    if (::fcntl(file, F_OFD_SETLK, &whole) != 0) return ErrnoError(errno, "unlocking");
  }
  if (legacy == EWOULDBLOCK) return Locked();
  if (legacy == 0 || (exclusive == 0 && IsMissing(legacy))) return absl::OkStatus();
  return ErrnoError(legacy, "locking");
}

absl::StatusOr<SpaceInfo> PosixFileSystem::Space(Handle dir) {
  struct statfs space;
  if (Uninterrupted([&] { return ::fstatfs(dir, &space); }) != 0) {
    return ErrnoError(errno, "asking for free space");
  }
  const int64_t block = space.f_frsize > 0 ? space.f_frsize : space.f_bsize;
  return SpaceInfo{.free_bytes = static_cast<int64_t>(space.f_bavail) * block,
                   .total_bytes = static_cast<int64_t>(space.f_blocks) * block,
                   .type = FileSystemName(static_cast<uint32_t>(space.f_type))};
}

}  // namespace

absl::StatusOr<std::unique_ptr<FileSystem>> MakePosixFileSystem(std::optional<FileUser> user) {
  CKPTD_ASSIGN_OR_RETURN(Actor actor, Actor::Make(user));
  return std::make_unique<PosixFileSystem>(std::move(actor), user ? user->umask : nullptr);
}

absl::StatusOr<Handle> OpenRootDirectory(const std::string& absolute_path,
                                         const std::optional<FileUser>& user) {
  if (absolute_path.empty() || absolute_path.front() != '/' ||
      absolute_path.find('\0') != std::string::npos) {
    return MakeError(
        absl::StatusCode::kInvalidArgument, "INVALID_PATH",
        absl::StrCat("'", absolute_path.c_str(), "' is not an absolute path; it must begin with /"));
  }
  CKPTD_ASSIGN_OR_RETURN(const Actor actor, Actor::Make(user));
  const Actor::Scope acting(actor);
  CKPTD_RETURN_IF_ERROR(acting.status());
  UniqueFd fd(OpenAt2(AT_FDCWD, absolute_path.c_str(), O_RDONLY | O_DIRECTORY, 0, RESOLVE_NO_MAGICLINKS));
  if (!fd) return OpenError(errno, absl::StrCat("opening directory ", absolute_path));
  return fd.release();
}

}  // namespace ckptd
