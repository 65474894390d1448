// Root directories on their way to the engine: looked at, and remembered for the daemon's next life.
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
#include "daemon/engine/root_io.h"
#include "storage/base/mutex.h"
#include "storage/base/unique_fd.h"
#include "storage/fs/posix_file_system.h"

namespace ckptd {

// Everything here blocks, on the root's file system or the state directory's. Thread-safe.
class RootAttacher {
 public:
  // Makes the engine's way to an open root directory; called on the engine's thread, must not block.
  using MakeIo =
      std::function<absl::StatusOr<std::unique_ptr<RootIo>>(UniqueFd directory, const FileUser& user)>;

  // Runs work that blocks on the state directory, and work on the engine's thread. Thread-safe, do not block.
  using Post = std::function<void(absl::AnyInvocable<void()>)>;
  struct Threads {
    Post state;
    Post engine;
    // Runs `look`, which blocks on a file system of this user's; `done` gets the result on any thread.
    using Look = absl::AnyInvocable<absl::StatusOr<RootAttachment>()>;
    std::function<void(uid_t uid, uint64_t device, Look look, RootAttachment::Reopened done)> look = nullptr;
  };

  RootAttacher(StateDirectory* state, MakeIo make_io, Threads threads)
      : state_(state), make_io_(std::move(make_io)), threads_(std::move(threads)) {}

  // A directory that a session handed over, perhaps open with O_PATH only, or named by path. `path` is what
  // the session calls it. The engine remembers it (RootAttachment::remember) when it has opened the root for
  // this user: what is sealed in it from then on is recovered after a crash. One to which this process has no
  // path is not remembered. New files get the umask of `user`, also those of a RootIo that was made earlier.
  // INVALID_ARGUMENT, reason INVALID_PATH, for what is no directory.
  absl::StatusOr<RootAttachment> Attach(UniqueFd directory, const std::string& path, const FileUser& user);

  // A root of an earlier life, with the rights that its user has now (FindGroups). FAILED_PRECONDITION,
  // reason ROOT_MOVED, when another directory is there now: a file system that is not mounted, most likely.
  absl::StatusOr<RootAttachment> Reopen(const storage::v1::KnownRoot& root);

 private:
  // The umask that a root's files are made with, shared with its RootIo while that lives. Set to `umask` when
  // there is one, else as the root's .ckptd shows which one it was made with.
  std::shared_ptr<std::atomic<mode_t>> UmaskOf(const UniqueFd& directory, const struct stat& info,
                                               const FileUser& user);
  RootAttachment Make(UniqueFd directory, const storage::v1::KnownRoot& root, const std::string& path,
                      const FileUser& user);
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
