// Types that the engine shares with its callers: who calls, options, root attachments, what it reports.
#ifndef CKPTD_DAEMON_ENGINE_SEAMS_ENGINE_TYPES_H_
#define CKPTD_DAEMON_ENGINE_SEAMS_ENGINE_TYPES_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "ckptd/v1/messages.pb.h"
#include "ckptd/v1/types.pb.h"
#include "daemon/engine/seams/authority.h"
#include "daemon/engine/seams/coordinator_io.h"
#include "daemon/engine/seams/limits.h"
#include "daemon/engine/seams/local_root_io.h"
#include "daemon/engine/seams/root_io.h"
#include "daemon/engine/seams/upload_io.h"
#include "daemon/memory/segment_pool.h"
#include "storage/base/clock.h"

namespace ckptd {

// The process that makes a call. The service fills it in from the connection's peer uid and the session's
// token.
struct Caller {
  SessionId session = 0;  // 0 for operators, who have no session.
  uid_t uid = 0;
  bool privileged = false;  // Root, or the daemon's own user: sees every run and may end every save.
  // 0 if the caller is in the daemon's own user and mount namespaces. Else the caller sees only runs of its
  // uid whose root was attached by its own session or by a living session with the same tenant number. -1:
  // only runs that its own session has attached.
  int64_t tenant = 0;
  bool may_name_paths = true;  // The caller's paths mean the same to the daemon (OpenRoot).
};

struct SessionInfo {
  SessionId id = 0;
  uid_t uid = 0;
  gid_t gid = 0;
  pid_t pid = 0;
  std::string client_instance;
  std::string client_name;
  bool descriptors = true;  // False if the session has only gRPC: its bytes come by WriteFile.
  int64_t tenant = 0;       // As Caller::tenant.
};

template <typename T>
using Reply = absl::AnyInvocable<void(absl::StatusOr<T>)>;

// Identifies a root over restarts of the daemon and of the machine: a boot may change device numbers, and
// clients choose paths.
struct RootKey {
  uid_t uid = 0;  // The run's owner.
  uint64_t inode = 0;
  std::string path;
};

// How a save ended, for the INFO line in the log, the metrics and the history.
struct SaveSummary {
  std::string run;  // `runs/{run}`.
  std::string run_id;
  std::string path;  // The root's.
  RootKey root;
  v1::Checkpoint checkpoint;
  double stall_seconds = 0;      // The largest that any rank reported.
  double staged_seconds = 0;     // First Begin to last Seal.
  double written_seconds = 0;    // First Begin to last part durable.
  double committed_seconds = 0;  // First Begin to published.
  double publish_seconds = 0;    // Last part durable to published.
  int slowest_rank = -1;         // The rank that sealed last.
};

// What processes have read of a checkpoint that they had open at the same time.
struct RestoreSummary {
  std::string run;
  RootKey root;
  std::string tag;
  std::optional<int64_t> step;
  int64_t sequence = 0;
  int64_t attempt = 0;  // The one that acted.
  int readers = 0;
  int64_t read_bytes = 0, total_bytes = 0;  // As the readers have reported; short reads report nothing.
  double seconds = 0;                       // From the first open to the last close.
  int slowest_rank = -1;                    // The rank that closed last; -1: it was none of the run's.
  std::string reason, message;              // Why a reader could not go on. Empty: none has said so.
};

// A checkpoint that was moved into the trash.
struct RemovalSummary {
  std::string run;
  RootKey root;
  std::string tag;
  std::optional<int64_t> step;
  int64_t sequence = 0;
  int64_t size_bytes = 0;
  std::optional<uid_t> by;  // The user who asked for it; nullopt: retention.
};

// Where the bytes of a WriteFile stream go: runs of memory that follow one another.
struct WriteTarget {
  int64_t id = 0;
  int64_t size = 0;
  std::vector<std::span<std::byte>> runs;
};

// Receives the engine's log messages and what has happened to checkpoints, on the engine's thread.
class EngineObserver {
 public:
  virtual ~EngineObserver() = default;
  virtual void OnSaveEnded(const SaveSummary& summary) = 0;
  // The root shows how a save ended that an earlier daemon had begun.
  virtual void OnEarlierSaveEnded(const SaveSummary& /*summary*/) {}
  virtual void OnRestoreEnded(const RestoreSummary& /*summary*/) {}
  virtual void OnRemoved(const RemovalSummary& /*summary*/) {}
  virtual void OnWarning(const std::string& message) = 0;
  virtual void OnInfo(const std::string& message) = 0;
  virtual void OnRootOpened(const std::string& run, const std::string& path, const ProbeResult& probe) = 0;
};

struct EngineOptions {
  std::string daemon_version;
  std::string daemon_instance;
  Duration degraded_after = std::chrono::seconds(10);
  // How long a locked root is tried again. A killed daemon holds the locks of its roots until the kernel has
  // torn down the whole process.
  Duration root_lock_timeout = std::chrono::seconds(5);
  int32_t chunk_bytes = 8 << 20;
  Duration scrub_period =
      Duration::zero();  // Time between two scrubs of a committed checkpoint; zero: never.
  int64_t scrub_bytes_per_second = 100 << 20;
  // LimitsConfig; percentages are of the pool.
  Duration max_admission_timeout = std::chrono::hours(24);
  Duration max_commit_timeout = std::chrono::hours(7 * 24);
  int max_pool_percent_per_user = 100;
  int max_reader_pool_percent_per_user = 50;
  Duration over_share_grace = std::chrono::seconds(10);
  // The pool frees the memory that is not in use when no save and no reader has asked for any for this long.
  // Zero: never.
  Duration idle_pool{};
  // A run that has been idle for this long is closed and gives up its descriptors and threads. Zero: never.
  Duration idle_root = std::chrono::hours(1);
  // Most open roots (file systems) of one user. A further attach closes the root that is idle longest.
  int roots_per_uid = 256;
  int file_systems_per_uid = 32;
  // How long a checkpoint stays in the trash if no save needs its room. Zero: it is deleted at once.
  Duration trash_grace = Duration::zero();
  // How long an attach waits for a root whose file system hangs.
  Duration attach_timeout = std::chrono::seconds(60);
  EngineLimits limits;
  // The name of this node among those that share an etcd; empty: the daemon knows no other node.
  std::string node = {};
  // The folder of several nodes that has a root at this RootAttachment::own_path; empty: the root is of this node
  // alone. Null: there are no such folders.
  std::function<std::string(const std::string& own_path)> shared_folder = nullptr;
};

// How the engine reaches a root.
struct RootAccess {
  RootAccess() = default;
  // The run is of this node alone.
  explicit RootAccess(std::unique_ptr<LocalRootIo> root)
      : coordinator_io(root.get()), local_io(root.get()), io(std::move(root)) {}
  // Several nodes share the run. `Io`: a RootIo and CoordinatorIo.
  template <typename Io>
  RootAccess(std::unique_ptr<Io> root, std::unique_ptr<Authority> run)
      : coordinator_io(root.get()), io(std::move(root)), authority(std::move(run)) {}

  CoordinatorIo* coordinator_io = nullptr;  // `io`; so is the next one.
  LocalRootIo* local_io = nullptr;          // Null: several nodes share the run.
  std::unique_ptr<RootIo> io;
  // Of the run in this root; it may use `io`, and is destroyed before it. Null: the run is of this node
  // alone, and the engine makes a LocalAuthority.
  std::unique_ptr<Authority> authority = nullptr;
  std::unique_ptr<UploadIo> uploads = nullptr;  // Null: its checkpoints are not uploaded.
};

// A root directory that a session handed over, with everything that the engine needs to open it once.
struct RootAttachment {
  uint64_t device = 0;
  uint64_t inode = 0;
  std::string path;
  uid_t uid = 0;  // The session's user.
  // Opens the root. The engine calls it at most once, when no run has this root yet.
  std::function<absl::StatusOr<RootAccess>()> make_io;

  // Adds the root to the list of known roots, which the next daemon opens at its start. The engine calls it
  // once the root is open and the user may use it. It answers the attach only after `done`, which runs on the
  // engine's thread, so every save that is sealed later survives a crash. The engine keeps the value while
  // the run is open. Empty: the root is known already.
  using Remembered = absl::AnyInvocable<void(absl::StatusOr<std::shared_ptr<const void>>)>;
  std::function<void(Remembered done)> remember = nullptr;

  // Finds the directory again after the engine has closed the idle run. `done` runs on the engine's thread.
  // Empty: the run is never closed.
  using Reopened = absl::AnyInvocable<void(absl::StatusOr<RootAttachment>)>;
  std::function<void(Reopened done)> reopen = nullptr;

  std::string own_path = {};  // In the daemon's mount namespace, without links; empty: none.
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_SEAMS_ENGINE_TYPES_H_
