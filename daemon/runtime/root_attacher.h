// Root directories on their way to the engine: looked at, and remembered for the daemon's next life.
#ifndef CKPTD_DAEMON_RUNTIME_ROOT_ATTACHER_H_
#define CKPTD_DAEMON_RUNTIME_ROOT_ATTACHER_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/root_io.h"
#include "daemon/runtime/state_directory.h"
#include "storage/base/unique_fd.h"
#include "storage/fs/posix_file_system.h"

namespace ckptd {

// Everything here blocks, on the root's file system or the state directory's. Thread-safe.
class RootAttacher {
 public:
  // Makes the engine's way to an open root directory; called on the engine's thread, must not block.
  using MakeIo = std::function<std::unique_ptr<RootIo>(UniqueFd directory, const FileUser& user)>;

  // Runs work that blocks on the state directory, and work on the engine's thread. Thread-safe, do not block.
  using Post = std::function<void(absl::AnyInvocable<void()>)>;
  struct Threads {
    Post state;
    Post engine;
  };

  RootAttacher(StateDirectory* state, MakeIo make_io, Threads threads)
      : state_(state), make_io_(std::move(make_io)), threads_(std::move(threads)) {}

  // A directory that a session handed over, perhaps open with O_PATH only, or named by path. `path` is what
  // the session calls it. The engine remembers it (RootAttachment::remember) when it has opened the root for
  // this user: what is sealed in it from then on is recovered after a crash. INVALID_ARGUMENT, reason
  // INVALID_PATH, for what is no directory.
  absl::StatusOr<RootAttachment> Attach(UniqueFd directory, const std::string& path, const FileUser& user);

  // A root of an earlier life, with the rights that its user has now (FindGroups). FAILED_PRECONDITION,
  // reason ROOT_MOVED, when another directory is there now: a file system that is not mounted, most likely.
  absl::StatusOr<RootAttachment> Reopen(const storage::v1::KnownRoot& root);

 private:
  RootAttachment Make(UniqueFd directory, const storage::v1::KnownRoot& root, const std::string& path,
                      const FileUser& user);
  absl::StatusOr<RootAttachment> TryReopen(const storage::v1::KnownRoot& root);

  StateDirectory* const state_;
  const MakeIo make_io_;
  const Threads threads_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_RUNTIME_ROOT_ATTACHER_H_
