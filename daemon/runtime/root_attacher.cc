#include "daemon/runtime/root_attacher.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/runtime/user_groups.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/fs/file_system.h"

namespace ckptd {
namespace {

// Where this process finds the directory, for its next life: a container may call it otherwise. The caller's
// path when there is no such place, or the user may not look there.
std::string OwnPath(const UniqueFd& directory, const struct stat& info, const std::string& path,
                    const FileUser& user) {
  char own[PATH_MAX];
  const ssize_t size = ::readlink(absl::StrCat("/proc/self/fd/", directory.get()).c_str(), own, sizeof(own));
  if (size <= 0 || size == sizeof(own)) return path;
  const std::string candidate(own, static_cast<size_t>(size));
  const absl::StatusOr<Handle> opened = OpenRootDirectory(candidate, user);
  if (!opened.ok()) return path;
  const UniqueFd found(*opened);
  struct stat there {};
  const bool same =
      ::fstat(found.get(), &there) == 0 && there.st_dev == info.st_dev && there.st_ino == info.st_ino;
  return same ? candidate : path;
}

}  // namespace

absl::StatusOr<RootAttachment> RootAttacher::Attach(UniqueFd directory, const std::string& path,
                                                    const FileUser& user) {
  struct stat info {};
  if (::fstat(directory.get(), &info) != 0) return ErrnoError(errno, absl::StrCat("fstat of root ", path));
  if (!S_ISDIR(info.st_mode)) {
    return MakeError(absl::StatusCode::kInvalidArgument, "INVALID_PATH",
                     absl::StrCat("root ", path, " is not a directory"), {{"path", path}});
  }
  storage::v1::KnownRoot root;
  root.set_path(OwnPath(directory, info, path, user));
  root.set_uid(static_cast<int32_t>(user.uid));
  root.set_gid(static_cast<int32_t>(user.gid));
  root.set_device(info.st_dev);
  root.set_inode(info.st_ino);
  return Make(std::move(directory), root, path, user);
}

absl::StatusOr<RootAttachment> RootAttacher::Reopen(const storage::v1::KnownRoot& root) {
  absl::StatusOr<RootAttachment> reopened = TryReopen(root);
  state_->SetMissing(root,
                     ErrnoOf(reopened.status()) == ENOENT || ReasonOf(reopened.status()) == "ROOT_MOVED");
  return reopened;
}

absl::StatusOr<RootAttachment> RootAttacher::TryReopen(const storage::v1::KnownRoot& root) {
  const auto uid = static_cast<uid_t>(root.uid());
  const UserGroups groups = FindGroups(uid, "/etc/passwd", "/etc/group");
  const FileUser user{.uid = uid,
                      .gid = groups.primary.value_or(static_cast<gid_t>(root.gid())),
                      .groups = groups.supplementary};
  CKPTD_ASSIGN_OR_RETURN(const Handle handle, OpenRootDirectory(root.path(), user));
  UniqueFd directory(handle);
  struct stat info {};
  if (::fstat(directory.get(), &info) != 0)
    return ErrnoError(errno, absl::StrCat("fstat of root ", root.path()));
  // The device's number may change with a boot; a directory's inode does not.
  if (info.st_ino != root.inode()) {
    return MakeError(
        absl::StatusCode::kFailedPrecondition, "ROOT_MOVED",
        absl::StrCat(root.path(), " is another directory than it was (inode ", info.st_ino, ", not ",
                     root.inode(), "); mount its file system, or let a trainer attach it"),
        {{"path", root.path()}});
  }
  storage::v1::KnownRoot now = root;
  now.set_device(info.st_dev);
  return Make(std::move(directory), now, root.path(), user);
}

RootAttachment RootAttacher::Make(UniqueFd directory, const storage::v1::KnownRoot& root,
                                  const std::string& path, const FileUser& user) {
  RootAttachment attachment;
  attachment.device = root.device();
  attachment.inode = root.inode();
  attachment.path = path;
  attachment.uid = user.uid;
  attachment.remember = [state = state_, threads = threads_, root](RootAttachment::Remembered done) {
    threads.state([state, threads, root, done = std::move(done)]() mutable {
      auto in_use = state->Remember(root);
      threads.engine(
          [in_use = std::move(in_use), done = std::move(done)]() mutable { done(std::move(in_use)); });
    });
  };
  // A std::function must be copyable, a descriptor is not: whoever calls first takes it.
  attachment.make_io = [this, shared = std::make_shared<UniqueFd>(std::move(directory)), user] {
    return make_io_(std::move(*shared), user);
  };
  return attachment;
}

}  // namespace ckptd
