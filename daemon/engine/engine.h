// The engine: all state of runs, attempts, checkpoints in flight, waits and leases, as a state machine over
// events.
//
// Everything here runs on one thread, the engine's (EventLoop). It never blocks and does no I/O. Replies run
// on that thread, too. The messages are those of ckptd.v1, without gRPC.
#ifndef CKPTD_DAEMON_ENGINE_ENGINE_H_
#define CKPTD_DAEMON_ENGINE_ENGINE_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "ckptd/v1/messages.pb.h"
#include "ckptd/v1/types.pb.h"
#include "daemon/engine/limits.h"
#include "daemon/engine/root_io.h"
#include "daemon/memory/segment_pool.h"
#include "daemon/succession/seal_journal.h"
#include "storage/base/clock.h"

namespace ckptd {

// Who calls. Made by the service from the connection's peer uid and the session's token.
struct Caller {
  SessionId session = 0;  // 0: none (operators).
  uid_t uid = 0;
  bool privileged = false;  // Root, or the daemon's own user: sees and may end everything.
  // Not 0: the caller is in another user or mount namespace than the daemon, and sees only runs of its uid
  // whose root its own session, or a living session with the same number, has attached. -1: its own alone.
  int64_t tenant = 0;
  bool may_name_paths = true;  // A path that it names is the daemon's, too (OpenRoot).
};

struct SessionInfo {
  SessionId id = 0;
  uid_t uid = 0;
  gid_t gid = 0;
  pid_t pid = 0;
  std::string client_instance;
  std::string client_name;
  bool descriptors = true;  // False: gRPC alone, bytes come by WriteFile.
  int64_t tenant = 0;       // As Caller::tenant.
};

template <typename T>
using Reply = absl::AnyInvocable<void(absl::StatusOr<T>)>;

// How a save ended: one INFO line in the log, and the metrics.
struct SaveSummary {
  std::string run;  // `runs/{run}`.
  std::string run_id;
  std::string path;  // Of the root.
  v1::Checkpoint checkpoint;
  double stall_seconds = 0;      // Largest that a rank reported.
  double staged_seconds = 0;     // First Begin to last Seal.
  double written_seconds = 0;    // First Begin to last part durable.
  double committed_seconds = 0;  // First Begin to published.
  double publish_seconds = 0;    // Last part durable to published.
  int slowest_rank = -1;         // Last to seal.
};

// What the engine tells the outside; called on its thread.
class EngineObserver {
 public:
  virtual ~EngineObserver() = default;
  virtual void OnSaveEnded(const SaveSummary& summary) = 0;
  virtual void OnWarning(const std::string& message) = 0;
  virtual void OnInfo(const std::string& message) = 0;
  virtual void OnRootOpened(const std::string& run, const std::string& path, const ProbeResult& probe) = 0;
};

struct EngineOptions {
  std::string daemon_version;
  std::string daemon_instance;
  Duration degraded_after = std::chrono::seconds(10);
  // A daemon that was killed keeps the lock of its roots until the kernel has taken all of it down.
  Duration root_lock_patience = std::chrono::seconds(5);
  int32_t chunk_bytes = 8 << 20;
  Duration scrub_period = Duration::zero();  // How often a committed checkpoint is read back; zero: never.
  int64_t scrub_bytes_per_second = 100 << 20;
  // LimitsConfig; percentages are of the pool.
  Duration max_admission_timeout = std::chrono::hours(24);
  Duration max_commit_timeout = std::chrono::hours(7 * 24);
  int max_pool_percent_per_user = 100;
  int max_reader_pool_percent_per_user = 50;
  Duration over_share_grace = std::chrono::seconds(10);
  // A run that nobody has used for so long is closed: it keeps no descriptors and no threads. Zero: none is.
  Duration idle_root = std::chrono::hours(1);
  // Of one user, open at a time. Where another one is wanted, the one that is idle longest is closed.
  int roots_per_uid = 256;
  int file_systems_per_uid = 32;
  // For a root to open, which its file system may keep it from.
  Duration attach_timeout = std::chrono::seconds(60);
  EngineLimits limits;
};

// A root directory that a session handed over: everything the engine needs to open it once.
struct RootAttachment {
  uint64_t device = 0;
  uint64_t inode = 0;
  std::string path;
  uid_t uid = 0;  // The session's user.
  // Called at most once, when no run has this root yet.
  std::function<absl::StatusOr<std::unique_ptr<RootIo>>()> make_io;

  // Remembers the root for the daemon's next life. The engine calls it when the root is open and this user
  // may have it, and answers the attach after `done`, which runs on the engine's thread: what is sealed from
  // then on is recovered after a crash. The value is kept as long as the run is open. Empty: it is known
  // already.
  using Remembered = absl::AnyInvocable<void(absl::StatusOr<std::shared_ptr<const void>>)>;
  std::function<void(Remembered done)> remember = nullptr;

  // Finds the directory again after the engine has closed the run because it was idle. `done` runs on the
  // engine's thread. Empty: the run is never closed.
  using Reopened = absl::AnyInvocable<void(absl::StatusOr<RootAttachment>)>;
  std::function<void(Reopened done)> reopen = nullptr;
};

class Engine {
 public:
  // `journal`: where sealed saves are kept for the next daemon; null: nowhere.
  Engine(EngineOptions options, Clock* clock, SegmentPool* pool, EngineObserver* observer,
         SealJournal* journal = nullptr);
  ~Engine();

  // Before the first root: what an earlier daemon had sealed, with its memory in the pool. It is written and
  // committed once its root is open.
  void Inherit(std::vector<storage::v1::SealedSave> saves);

  // ---- sessions
  void SessionOpened(const SessionInfo& info);
  void SessionClosed(SessionId session, const std::string& why);
  void AttachRoot(SessionId session, RootAttachment attachment, Reply<std::string> root);
  // Known roots at start: recovered before any question about them is answered. Fails when the root cannot be
  // opened.
  void RecoverRoot(RootAttachment attachment, Reply<std::string> run);

  // ---- ckptd.v1.Checkpoints
  void JoinRun(const Caller& caller, const v1::JoinRunRequest& request, Reply<v1::JoinRunResponse> reply);
  void Begin(const Caller& caller, const v1::BeginRequest& request, Reply<v1::BeginResponse> reply);
  void Extend(const Caller& caller, const v1::ExtendRequest& request, Reply<v1::ExtendResponse> reply);
  void Seal(const Caller& caller, const v1::SealRequest& request, Reply<v1::SealResponse> reply);
  void Abort(const Caller& caller, const v1::AbortRequest& request, Reply<v1::AbortResponse> reply);
  void Wait(const Caller& caller, const v1::WaitRequest& request, Reply<v1::WaitResponse> reply);
  void GetCheckpoint(const Caller& caller, const v1::GetCheckpointRequest& request,
                     Reply<v1::Checkpoint> reply);
  void ListCheckpoints(const Caller& caller, const v1::ListCheckpointsRequest& request,
                       Reply<v1::ListCheckpointsResponse> reply);
  void Resume(const Caller& caller, const v1::ResumeRequest& request, Reply<v1::ResumeResponse> reply);
  void FinishResume(const Caller& caller, const v1::FinishResumeRequest& request,
                    Reply<v1::FinishResumeResponse> reply);
  void ReportDamage(const Caller& caller, const v1::ReportDamageRequest& request,
                    Reply<v1::ReportDamageResponse> reply);
  void OpenCheckpoint(const Caller& caller, const v1::OpenCheckpointRequest& request,
                      Reply<v1::OpenCheckpointResponse> reply);
  void LocateFiles(const Caller& caller, const v1::LocateFilesRequest& request,
                   Reply<v1::LocateFilesResponse> reply);
  void ReportReading(const Caller& caller, const v1::ReportReadingRequest& request,
                     Reply<v1::ReportReadingResponse> reply);
  void CloseCheckpoint(const Caller& caller, const v1::CloseCheckpointRequest& request,
                       Reply<v1::CloseCheckpointResponse> reply);
  // For ReadFile: the reader behind a lease of this session.
  absl::StatusOr<std::shared_ptr<CheckpointReader>> FindReader(const Caller& caller,
                                                               const std::string& lease);
  // For WriteFile: where a placed file's bytes go, as runs of memory that follow one another. They are the
  // caller's until EndWrite, or until the save fails: then `revoke` is called with its error, and once that
  // has returned the caller touches them no more. So a stream that never ends holds no memory beyond its
  // save. INVALID_ARGUMENT etc. as Extend.
  struct WriteTarget {
    int64_t id = 0;
    int64_t size = 0;
    std::vector<std::span<std::byte>> runs;
  };
  absl::StatusOr<WriteTarget> BeginWrite(const Caller& caller, const v1::SaveKey& key,
                                         const std::string& path,
                                         std::function<void(const absl::Status& why)> revoke);
  void EndWrite(int64_t id);  // Of one that was revoked: nothing.

  // Watchers: `event` runs on each change of level and, every `interval`, on progress. False from it ends the
  // watch.
  int64_t AddWatcher(const Caller& caller, const v1::WatchRequest& request,
                     std::function<bool(const v1::WatchResponse&)> event, absl::Status* refused);
  void RemoveWatcher(int64_t id);

  // ---- ckptd.v1.Admin
  v1::Status GetStatus(const Caller& caller);
  void SetPinned(const Caller& caller, const std::string& name, bool pinned, Reply<v1::Checkpoint> reply);
  void ClearDamage(const Caller& caller, const std::string& name, Reply<v1::Checkpoint> reply);
  void Prefetch(const Caller& caller, const std::string& name, Reply<v1::Checkpoint> reply);

  // Makes checkpoints of another program ours. `event` runs for progress and for each outcome, and says false
  // when nobody listens any more: then it stops, as after StopAdoption. `ended` runs once.
  int64_t AdoptCheckpoints(const Caller& caller, const v1::AdoptCheckpointsRequest& request,
                           std::function<bool(const v1::AdoptCheckpointsResponse&)> event,
                           std::function<void(const absl::Status&)> ended);
  void StopAdoption(int64_t id);  // Of one that has ended: nothing.

  // ---- life
  // No new Begin from now on; `done` when no sealed save is left and what commits pushed out is gone, or
  // could not be removed: perhaps at once.
  void Drain(absl::AnyInvocable<void()> done);
  bool HasSealedSaves() const;
  // Deadlines; call it about every 50 ms, or at NextDeadline().
  void Tick();
  Instant NextDeadline() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_ENGINE_H_
