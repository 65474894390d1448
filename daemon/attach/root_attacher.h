// Inspects root directories for the engine, and remembers them in the state directory for the next start.
#ifndef CKPTD_DAEMON_ATTACH_ROOT_ATTACHER_H_
#define CKPTD_DAEMON_ATTACH_ROOT_ATTACHER_H_

#include <sys/stat.h>
#include <sys/types.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "daemon/attach/state_directory.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/seams/root_io.h"
#include "storage/base/mutex.h"
#include "storage/base/unique_fd.h"
#include "storage/fs/posix_file_system.h"

namespace ckptd {

// An open root directory and what it is called.
struct RootToOpen {
  UniqueFd directory;
  FileUser user;
  std::string path;  // As the session calls it; for messages.
  std::string
      own_path;  // In this process's mount namespace, without symbolic links. Empty: it has none there.
  bool is_bucket = false;  // `path` is the URL of a bucket's prefix, and there is no directory.
};

// Thread-safe. Every method blocks on the root's file system or on the state directory's.
class RootAttacher {
 public:
  // Makes what the engine needs of a root. Called on the engine's thread; must not block.
  using MakeIo = std::function<absl::StatusOr<RootAccess>(RootToOpen root)>;

  // How to run work on other threads. All functions are thread-safe and do not block.
  using Post = std::function<void(absl::AnyInvocable<void()>)>;
  struct Threads {
    Post state;   // For work that blocks on the state directory.
    Post engine;  // On the engine's thread.
    // Runs `inspect`, which blocks on a file system, for this user; `done` gets the result on any thread.
    using Inspect = absl::AnyInvocable<absl::StatusOr<RootAttachment>()>;
    std::function<void(uid_t uid, uint64_t device, Inspect inspect, RootAttachment::Reopened done)> inspect =
        nullptr;
  };

  RootAttacher(StateDirectory* state, MakeIo make_io, Threads threads)
      : state_(state), make_io_(std::move(make_io)), threads_(std::move(threads)) {}

  // Inspects a directory that a session handed over (perhaps open with O_PATH) or named by path. `path` is
  // the session's name for it. Once the engine has opened the root for this user, it calls
  // RootAttachment::remember, so that sealed saves are recovered after a crash. A directory to which this
  // process has no path is not remembered. New files get the umask of `user`, also in a RootIo that was made
  // earlier. INVALID_ARGUMENT, reason INVALID_PATH, if it is not a directory.
  // If `path` is the URL of a bucket's prefix, that is the root, and `directory` is not used. Such a root is not
  // remembered: the next daemon would take it from one on another node.
  absl::StatusOr<RootAttachment> Attach(UniqueFd directory, const std::string& path, const FileUser& user);

  // Opens a root that an earlier daemon knew, with the rights that its user has now (FindGroups).
  // FAILED_PRECONDITION, reason ROOT_MOVED, when another directory is at its path now, most likely because
  // its file system is not mounted.
  absl::StatusOr<RootAttachment> Reopen(const storage::v1::KnownRoot& root);

 private:
  // Returns the umask of the root's files, shared with its RootIo while that lives. It is user.umask if set,
  // else the one that the mode of the root's .ckptd shows.
  std::shared_ptr<std::atomic<mode_t>> UmaskOf(const UniqueFd& directory, const struct stat& info,
                                               const FileUser& user);
  absl::StatusOr<RootAttachment> AttachBucket(const std::string& url, const FileUser& user);
  RootAttachment Make(RootToOpen directory, const storage::v1::KnownRoot& root);
  absl::StatusOr<RootAttachment> TryReopen(const storage::v1::KnownRoot& root);

  StateDirectory* const state_;
  const MakeIo make_io_;
  const Threads threads_;
  Mutex mutex_;
  // By device, inode and uid.
  std::map<std::tuple<dev_t, ino_t, uid_t>, std::weak_ptr<std::atomic<mode_t>>> umasks_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ATTACH_ROOT_ATTACHER_H_
