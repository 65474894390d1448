// The engine: all state of runs, attempts, checkpoints in flight, waits and leases, as a state machine over
// events.
//
// Everything here runs on one thread, the engine's (EventLoop). It never blocks and does no I/O. Replies run
// on that thread, too. The messages are those of ckptd.v1, without gRPC.
#ifndef CKPTD_DAEMON_ENGINE_ENGINE_H_
#define CKPTD_DAEMON_ENGINE_ENGINE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "ckptd/v1/messages.pb.h"
#include "ckptd/v1/types.pb.h"
#include "daemon/engine/seams/engine_types.h"
#include "daemon/engine/seams/root_io.h"
#include "daemon/memory/segment_pool.h"
#include "daemon/succession/seal_journal.h"
#include "storage/base/clock.h"

namespace ckptd {

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
  // For WriteFile: the memory of a placed file. It is the caller's until EndWrite, or until the save fails:
  // then the engine calls `revoke` with the save's error, and the caller must not touch the memory after that
  // has returned. So a stream that never ends holds no memory beyond its save. INVALID_ARGUMENT etc. as
  // Extend.
  using WriteTarget = ckptd::WriteTarget;
  absl::StatusOr<WriteTarget> BeginWrite(const Caller& caller, const v1::SaveKey& key,
                                         const std::string& path,
                                         std::function<void(const absl::Status& why)> revoke);
  void EndWrite(int64_t id);  // No-op if the write was already revoked.

  // Watchers: `event` runs on each change of level and, every `interval`, on progress. False from it ends the
  // watch.
  int64_t AddWatcher(const Caller& caller, const v1::WatchRequest& request,
                     std::function<bool(const v1::WatchResponse&)> event, absl::Status* refused);
  void RemoveWatcher(int64_t id);

  // ---- ckptd.v1.Admin
  v1::Status GetStatus(const Caller& caller);
  v1::ListSessionsResponse ListSessions(const Caller& caller);
  void SetPinned(const Caller& caller, const std::string& name, bool pinned, Reply<v1::Checkpoint> reply);
  void SetRetention(const Caller& caller, const v1::SetRetentionRequest& request, Reply<v1::Run> reply);
  void ExplainRetention(const Caller& caller, const v1::ExplainRetentionRequest& request,
                        Reply<v1::ExplainRetentionResponse> reply);
  void DeleteCheckpoint(const Caller& caller, const v1::DeleteCheckpointRequest& request,
                        Reply<v1::Checkpoint> reply);
  void ListTrash(const Caller& caller, const v1::ListTrashRequest& request,
                 Reply<v1::ListTrashResponse> reply);
  // The root of a run that the caller may see, for what is kept of it elsewhere.
  void FindRoot(const Caller& caller, const std::string& run, Reply<RootKey> reply);
  void UndeleteCheckpoint(const Caller& caller, const v1::UndeleteCheckpointRequest& request,
                          Reply<v1::Checkpoint> reply);
  void ResolveSave(const Caller& caller, const v1::ResolveSaveRequest& request,
                   Reply<v1::ResolveSaveResponse> reply);
  void ClearDamage(const Caller& caller, const std::string& name, Reply<v1::Checkpoint> reply);
  void Prefetch(const Caller& caller, const std::string& name, Reply<v1::Checkpoint> reply);

  // Makes checkpoints of another program ours. `event` runs for progress and for each outcome, and says false
  // when the caller does not listen any more: then it stops, as after StopAdoption. `ended` runs once.
  int64_t AdoptCheckpoints(const Caller& caller, const v1::AdoptCheckpointsRequest& request,
                           std::function<bool(const v1::AdoptCheckpointsResponse&)> event,
                           std::function<void(const absl::Status&)> ended);
  void StopAdoption(int64_t id);  // Of one that has ended: nothing.

  // An operator stops new saves, or undoes that. Answers with the status.
  absl::StatusOr<v1::Status> SetDrained(const Caller& caller, const v1::DrainRequest& request);

  // ---- settings that change while it runs
  // `options` may differ in what LimitsConfig has. What is admitted, open or under way stays; saves that wait for
  // room are looked at anew.
  void SetLimits(const EngineOptions& options);
  // Closes the idle ones of the open roots whose own path (RootAccess) is one of `which`: they are opened anew at
  // their next use. Returns the paths of the others.
  std::vector<std::string> CloseIdleRoots(const std::function<bool(const std::string& own_path)>& which);

  // ---- life
  // No new Begin from now on; `done` when no sealed save is left and what commits pushed out is gone, or
  // could not be removed: perhaps at once.
  void Drain(absl::AnyInvocable<void()> done);
  bool HasSealedSaves() const;
  // Something is to be copied to a bucket, or removed from one.
  bool HasUploads() const;
  // Deadlines; call it about every 50 ms, or at NextDeadline().
  void Tick();
  Instant NextDeadline() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_ENGINE_H_
