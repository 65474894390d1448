#include "daemon/attach/root_attacher.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/attach/user_groups.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/fs/file_system.h"
#include "storage/object/bucket_url.h"

namespace ckptd {
namespace {

// Returns the path of an open directory in this process's mount namespace, without symbolic links; "" if it
// has none.
std::string PathOf(const UniqueFd& directory) {
  char path[PATH_MAX];
  const ssize_t size =
      ::readlink(absl::StrCat("/proc/self/fd/", directory.get()).c_str(), path, sizeof(path));
  return size > 0 && size < static_cast<ssize_t>(sizeof(path)) ? std::string(path, static_cast<size_t>(size))
                                                               : "";
}

// Returns the path at which the next daemon finds the directory; a container may have another name for it.
// nullopt if neither the directory's own path nor `path` leads to it with the user's rights: a path that only
// the caller vouches for may be anybody's directory.
std::optional<std::string> OwnPath(const UniqueFd& directory, const struct stat& info,
                                   const std::string& path, const FileUser& user) {
  for (const std::string& candidate : {PathOf(directory), path}) {
    const absl::StatusOr<Handle> opened = OpenRootDirectory(candidate, user);
    if (!opened.ok()) continue;
    const UniqueFd found(*opened);
    struct stat there {};
    if (::fstat(found.get(), &there) != 0) continue;
    if (there.st_dev == info.st_dev && there.st_ino == info.st_ino) return PathOf(found);
  }
  return std::nullopt;
}

// The same for the same text, on every daemon.
uint64_t NumberOf(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a.
  for (const char each : text) hash = (hash ^ static_cast<unsigned char>(each)) * 0x100000001b3u;
  return hash;
}

// Returns the umask with which the root's first trainer made .ckptd; 022 if there is no .ckptd yet.
mode_t UmaskOfRoot(const UniqueFd& directory, const FileUser& user) {
  const absl::StatusOr<std::unique_ptr<FileSystem>> fs = MakePosixFileSystem(user);
  if (!fs.ok()) return 022;
  const absl::StatusOr<ScopedHandle> root = OpenScoped(**fs, directory.get(), ".", OpenMode::kDirectory);
  if (!root.ok()) return 022;
  const absl::StatusOr<ScopedHandle> ours = OpenScoped(**fs, root->get(), ".ckptd", OpenMode::kDirectory);
  struct stat info {};
  if (!ours.ok() || ::fstat(ours->get(), &info) != 0) return 022;
  return ~info.st_mode & 0777;
}

}  // namespace

absl::StatusOr<RootAttachment> RootAttacher::Attach(UniqueFd directory, const std::string& path,
                                                    const FileUser& user) {
  if (IsBucketUrl(path)) return AttachBucket(path, user);
  struct stat info {};
  if (::fstat(directory.get(), &info) != 0) return ErrnoError(errno, absl::StrCat("fstat of root ", path));
  if (!S_ISDIR(info.st_mode)) {
    return MakeError(absl::StatusCode::kInvalidArgument, "INVALID_PATH",
                     absl::StrCat("root ", path, " is not a directory"), {{"path", path}});
  }
  storage::v1::KnownRoot root;
  const std::optional<std::string> own_path = OwnPath(directory, info, path, user);
  root.set_path(own_path.value_or(path));
  root.set_uid(static_cast<int32_t>(user.uid));
  root.set_gid(static_cast<int32_t>(user.gid));
  root.set_device(info.st_dev);
  root.set_inode(info.st_ino);
  FileUser owner = user;
  owner.umask = UmaskOf(directory, info, user);
  RootAttachment attachment =
      Make({std::move(directory), std::move(owner), path, own_path.value_or("")}, root);
  if (!own_path) attachment.remember = nullptr;
  return attachment;
}

absl::StatusOr<RootAttachment> RootAttacher::AttachBucket(const std::string& url, const FileUser& user) {
  CKPTD_ASSIGN_OR_RETURN(const BucketUrl parsed, ParseBucketUrl(url));
  RootAttachment attachment;
  attachment.path = absl::StrCat("s3://", parsed.bucket, parsed.prefix.empty() ? "" : "/", parsed.prefix);
  attachment.device = 0;  // No file system has it.
  attachment.inode = NumberOf(attachment.path);
  attachment.uid = user.uid;
  attachment.make_io = [this, user, path = attachment.path] {
    return make_io_(RootToOpen{UniqueFd(), user, path, "", /*is_bucket=*/true});
  };
  // An idle one is closed. Then only a job opens it again: that takes it from any daemon that has it meanwhile.
  attachment.reopen = [this, path = attachment.path](RootAttachment::Reopened done) {
    threads_.engine([path, done = std::move(done)]() mutable {
      done(MakeError(absl::StatusCode::kNotFound, "UNKNOWN_RUN",
                     absl::StrCat("the root ", path,
                                  " was idle and is closed here; the next job that runs in it opens "
                                  "it again")));
    });
  };
  return attachment;
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
  // A symbolic link that was put into the path since then may lead anywhere, perhaps to a directory with the
  // same inode number on another file system.
  if (const std::string now = PathOf(directory); now != root.path()) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "ROOT_MOVED",
                     absl::StrCat(root.path(), " leads to ", now, " now; start a job that attaches the root"),
                     {{"path", root.path()}});
  }
  // Compare the inode only: device numbers may change at a boot.
  if (info.st_ino != root.inode()) {
    return MakeError(
        absl::StatusCode::kFailedPrecondition, "ROOT_MOVED",
        absl::StrCat(root.path(), " is another directory than before (inode ", info.st_ino, ", not ",
                     root.inode(), "); mount its file system, or start a job that attaches it"),
        {{"path", root.path()}});
  }
  storage::v1::KnownRoot now = root;
  now.set_device(info.st_dev);
  FileUser owner = user;
  owner.umask = UmaskOf(directory, info, user);
  return Make({std::move(directory), std::move(owner), root.path(), root.path()}, now);
}

std::shared_ptr<std::atomic<mode_t>> RootAttacher::UmaskOf(const UniqueFd& directory, const struct stat& info,
                                                           const FileUser& user) {
  const bool asked = user.umask != nullptr;
  const mode_t now = asked ? user.umask->load() : UmaskOfRoot(directory, user);
  MutexLock lock(mutex_);
  std::erase_if(umasks_, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<std::atomic<mode_t>>& known = umasks_[{info.st_dev, info.st_ino, user.uid}];
  std::shared_ptr<std::atomic<mode_t>> umask = known.lock();
  if (umask == nullptr) {
    umask = std::make_shared<std::atomic<mode_t>>(now);
    known = umask;
  } else if (asked) {
    umask->store(now);
  }
  return umask;
}

RootAttachment RootAttacher::Make(RootToOpen directory, const storage::v1::KnownRoot& root) {
  const std::string path = directory.path;
  RootAttachment attachment;
  attachment.device = root.device();
  attachment.inode = root.inode();
  attachment.path = path;
  attachment.own_path = directory.own_path;
  attachment.uid = directory.user.uid;
  attachment.remember = [state = state_, threads = threads_, root](RootAttachment::Remembered done) {
    threads.state([state, threads, root, done = std::move(done)]() mutable {
      auto in_use = state->Remember(root);
      threads.engine(
          [in_use = std::move(in_use), done = std::move(done)]() mutable { done(std::move(in_use)); });
    });
  };
  if (threads_.inspect != nullptr) {
    attachment.reopen = [this, root, path](RootAttachment::Reopened done) {
      const auto inspect = [this, root, path]() -> absl::StatusOr<RootAttachment> {
        CKPTD_ASSIGN_OR_RETURN(RootAttachment found, Reopen(root));
        found.path = path;
        return found;
      };
      threads_.inspect(static_cast<uid_t>(root.uid()), root.device(), inspect,
                       [this, done = std::move(done)](absl::StatusOr<RootAttachment> found) mutable {
                         threads_.engine([found = std::move(found), done = std::move(done)]() mutable {
                           done(std::move(found));
                         });
                       });
    };
  }
  // Shared, because a std::function must be copyable. The first call takes it.
  attachment.make_io = [this, shared = std::make_shared<RootToOpen>(std::move(directory))] {
    return make_io_(std::move(*shared));
  };
  return attachment;
}

}  // namespace ckptd
