// Engine::Impl wires the engine's classes together, and has those request handlers that concern several of
// them:
//   engine.cc               public API, ticks
//   drain.cc                draining
//   settings.cc             settings that change while it runs
//   wiring.cc               constructs the classes, and connects them
//   events.cc               what follows from an event, and in which order
//   checkpoint_requests.cc  describing, listing, opening, locating and pinning checkpoints
//   runs.cc                 loading roots, lost saves, fencing, the end of a session
//   save_requests.cc        Begin, Extend, Seal, Abort, Wait, WriteFile
#ifndef CKPTD_DAEMON_ENGINE_ENGINE_IMPL_H_
#define CKPTD_DAEMON_ENGINE_ENGINE_IMPL_H_

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/engine/admission/admission_queue.h"
#include "daemon/engine/admission/disk_room.h"
#include "daemon/engine/admission/expected_sizes.h"
#include "daemon/engine/admission/file_placer.h"
#include "daemon/engine/admission/kept_layouts.h"
#include "daemon/engine/admission/memory_shares.h"
#include "daemon/engine/admission/part_grants.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/reading/damage_marks.h"
#include "daemon/engine/reading/lease_table.h"
#include "daemon/engine/reading/prefetcher.h"
#include "daemon/engine/reading/resident_cache.h"
#include "daemon/engine/reading/restores.h"
#include "daemon/engine/reading/scrubber.h"
#include "daemon/engine/reading/watch_hub.h"
#include "daemon/engine/resume/resume_barrier.h"
#include "daemon/engine/resume/run_joiner.h"
#include "daemon/engine/retention/outcome_history.h"
#include "daemon/engine/retention/retention.h"
#include "daemon/engine/retention/trash_collector.h"
#include "daemon/engine/roots/adoption_jobs.h"
#include "daemon/engine/roots/root_scanner.h"
#include "daemon/engine/roots/run_table.h"
#include "daemon/engine/run/run.h"
#include "daemon/engine/run/save.h"
#include "daemon/engine/run/save_table.h"
#include "daemon/engine/run/session_table.h"
#include "daemon/engine/run/wire.h"
#include "daemon/engine/save/earlier_saves.h"
#include "daemon/engine/save/ended_saves.h"
#include "daemon/engine/save/member_files.h"
#include "daemon/engine/save/publisher.h"
#include "daemon/engine/save/save_driver.h"
#include "daemon/engine/save/save_intake.h"
#include "daemon/engine/save/save_recovery.h"
#include "daemon/engine/save/save_tracker.h"
#include "daemon/engine/save/write_streams.h"
#include "daemon/engine/upload/bucket_fetches.h"
#include "daemon/engine/upload/shared_fetches.h"
#include "daemon/engine/upload/uploads.h"
#include "storage/ledger/ledger.h"

namespace ckptd {

class Engine::Impl {
 public:
  // wiring.cc
  Impl(EngineOptions options, Clock* clock, SegmentPool* pool, EngineObserver* observer,
       SealJournal* journal);
  DescribeCheckpoint DescribeHook() const;
  MarkAsDamaged MarkDamagedHook();

  // events.cc
  void OnRootOpening(Run* run);
  void OnRootOpened(Run* run);
  void OnRootAccepted(Run* run);  // It is open, and its user may use it.
  // It takes no changes until it has been scanned.
  void ScanBeforeChanges(Run* run);
  void LoadScan(Run* run, RootSnapshot snapshot, int64_t written_bytes);
  void OnScanned(Run* run);
  // Another node has changed it.
  void OnRootChanged(Run* run);
  void OnJoined(Run* run, int64_t attempt, const v1::JoinRunRequest& request);
  void OnUploadChanged(const Run& run, int64_t sequence);
  void OnBucketListed(Run* run, int64_t attempt, const v1::UploadPolicy& policy,
                      const UploadIo::Contents& contents);
  void OnBucketFetched(Run* run, const absl::Status& status, bool is_new);
  // What ranks that resume wait for, for people.
  std::string DescribeFetch(const Run& run) const;
  // Whether room on the run's disk may come without another save's end.
  bool MayFreeRoom(const Run& run) const;
  // A save needs the room of checkpoints that wait for their upload alone.
  void GiveUpUploads(Run* run);
  void OnTrashEmptied(Run* run, bool for_room);
  void OnHistoryFailed(Run* run, bool retention_waits);
  void OnAdmitted(Save* save);
  void OnAllSealed(Save* save);
  void OnRecovered(Save* save);
  // A save has become a checkpoint, which takes the place of an older one with the same tag.
  void OnCommitted(Save* save, CommittedCheckpoint committed, PointerFiles pointers);
  // A save of several nodes has, and this one could not read it.
  void OnCommittedUnread(Save* save);
  // It is not known whether a save is a checkpoint, because of `why`. The root takes no changes until it has
  // been scanned.
  void OnUnknown(Save* save, const absl::Status& why);
  void OnReleasingMemory(Save* save);
  void OnMemoryReleased(const Save& save);
  void OnSaveEnded(Save* save);
  void OnRemovedByOthers(Run* run, int64_t sequence);
  void OnPinChanged(Run* run, const std::string& tag, int64_t sequence, bool pinned);
  void OnLeaseReleased(const Lease& lease);

  // runs.cc
  // Null: no run has this name, or it is closed.
  Run* RunOfName(const std::string& name) const { return runs_.Find(name); }
  absl::StatusOr<Run*> FindRun(const Caller& caller, const std::string& name);
  absl::StatusOr<Run*> RunOfCheckpointName(const Caller& caller, const std::string& name, std::string* tag);
  void LoadSnapshot(Run* run, RootSnapshot snapshot);
  void UseLedger(Run* run, Ledger* kept);
  void RecordFoundSaves(Run* run);
  void RecordMissingOutcomes(Run* run, const std::vector<RecoveredSave>& recovered);
  void RecordCommitted(Run* run, const storage::v1::Outcome& outcome);
  void RecordLostSaves(Run* run, const std::vector<RecoveredSave>& recovered);
  void ReportOrphans(Run* run, int64_t attempt, const v1::JoinRunRequest& request);
  void ReportLost(Run* run, const SaveId& id, int rank, const std::string& why);
  void RecordEarlierEnd(Run* run, const storage::v1::Outcome& outcome);
  void FenceOff(Run* run, int64_t active_attempt);
  std::vector<std::pair<Save*, int>> UnsealedSavesOf(SessionId session) const;
  std::vector<std::pair<Run*, Member>> LeaveRuns(const SessionInfo& session);
  void SessionClosed(SessionId session, const std::string& why);

  // save_requests.cc
  void Begin(const Caller& caller, const v1::BeginRequest& request, Reply<v1::BeginResponse> reply);
  // The answer to a Begin of a save that has ended; nullopt if it has not.
  std::optional<absl::StatusOr<v1::BeginResponse>> AnswerIfEnded(Run* run, const SaveId& key);
  void Extend(const Caller& caller, const v1::ExtendRequest& request, Reply<v1::ExtendResponse> reply);
  absl::StatusOr<Save*> FindSave(const Caller& caller, const v1::SaveKey& key,
                                 const Member** member = nullptr);
  absl::StatusOr<Save*> FindSaveByName(const Caller& caller, const std::string& name);
  // Places the files that a growing part has beyond those that its rank has asked for.
  absl::Status PlaceUnasked(Save* save, const Member& member, const v1::SealRequest& request);
  void Seal(const Caller& caller, const v1::SealRequest& request, Reply<v1::SealResponse> reply);
  void Abort(const Caller& caller, const v1::AbortRequest& request, Reply<v1::AbortResponse> reply);
  // What a Wait is about: a save in flight, or how one has ended, or one of which this daemon knows neither.
  struct Awaited {
    Save* save = nullptr;
    std::optional<v1::Checkpoint> past = std::nullopt;
    Run* run = nullptr;  // And `id`: of the last kind.
    SaveId id = {};
  };
  absl::StatusOr<Awaited> FindAwaitedByName(const Caller& caller, const std::string& name);
  absl::StatusOr<Awaited> FindAwaitedByKey(const Caller& caller, const v1::WaitRequest& request);
  void Wait(const Caller& caller, const v1::WaitRequest& request, Reply<v1::WaitResponse> reply);
  void WaitForEarlier(Run* run, const SaveId& key, int64_t sequence, Instant deadline,
                      Reply<v1::WaitResponse> reply);
  // The checkpoint is committed; answers when it is in the bucket, too.
  void WaitForUpload(v1::Checkpoint committed, Instant deadline, Reply<v1::WaitResponse> reply);
  absl::StatusOr<WriteTarget> BeginWrite(const Caller& caller, const v1::SaveKey& key,
                                         const std::string& path,
                                         std::function<void(const absl::Status&)> revoke);

  // checkpoint_requests.cc
  v1::Checkpoint Describe(const Save& save, v1::View view) const;
  v1::Checkpoint Describe(const Run& run, const CommittedCheckpoint& committed) const;
  v1::Run Describe(const Run& run) const;
  v1::Session Describe(const SessionInfo& session, int64_t pool_bytes) const;
  v1::ListSessionsResponse ListSessions(const Caller& caller) const;
  void GetCheckpoint(const Caller& caller, const v1::GetCheckpointRequest& request,
                     Reply<v1::Checkpoint> reply);
  void GetCommitted(Run* run, const CommittedCheckpoint& committed, const Caller& caller,
                    const v1::GetCheckpointRequest& request, Reply<v1::Checkpoint> reply);
  void ListCheckpoints(const Caller& caller, const v1::ListCheckpointsRequest& request,
                       Reply<v1::ListCheckpointsResponse> reply);
  std::map<int64_t, v1::Checkpoint> CommittedBelow(const Run& run, int64_t below, int count) const;
  void OpenCheckpoint(const Caller& caller, const v1::OpenCheckpointRequest& request,
                      Reply<v1::OpenCheckpointResponse> reply);
  void OpenCheckpoint(SessionId session, Run* run, const std::string& tag, bool strict,
                      Reply<v1::OpenCheckpointResponse> reply);
  void LocateFiles(const Caller& caller, const v1::LocateFilesRequest& request,
                   Reply<v1::LocateFilesResponse> reply);
  void SetPinned(Run* run, const std::string& tag, bool pinned, Reply<v1::Checkpoint> reply);

  // retention_requests.cc
  void SetRetention(Run* run, const v1::SetRetentionRequest& request, Reply<v1::Run> reply);
  void ExplainRetention(Run* run, const v1::ExplainRetentionRequest& request,
                        Reply<v1::ExplainRetentionResponse> reply);
  void DeleteCheckpoint(Run* run, const std::string& tag, const Caller& caller, bool force,
                        Reply<v1::Checkpoint> reply);
  void ListTrash(Run* run, Reply<v1::ListTrashResponse> reply);
  void ResolveSave(const Caller& caller, const v1::ResolveSaveRequest& request,
                   Reply<v1::ResolveSaveResponse> reply);
  void UndeleteCheckpoint(Run* run, const std::string& tag, int64_t sequence, Reply<v1::Checkpoint> reply);

  // settings.cc
  RunTable::Options RunTableOptions() const;
  void SetLimits(const EngineOptions& options);

  // drain.cc
  void CheckDrained();
  // The error for a save that has not begun. OK: the daemon takes it.
  absl::Status CheckTakesSaves() const;
  // What the daemon should finish before it ends, of all users.
  std::vector<v1::UnfinishedWork> UnfinishedWork() const;
  v1::DrainStatus DescribeDrain(const Caller& caller) const;

  // engine.cc
  // Opens the run if it is closed for being idle.
  template <typename T>
  void WithRun(const Caller& caller, const std::string& name, Reply<T> reply,
               absl::AnyInvocable<void(Run*, Reply<T>)> then) {
    runs_.WhenOpen<T>(caller, name, std::move(reply),
                      [this, caller, name, then = std::move(then)](Reply<T> awake) mutable {
                        const absl::StatusOr<Run*> run = FindRun(caller, name);
                        if (!run.ok()) return awake(run.status());
                        then(*run, std::move(awake));
                      });
  }
  // Opens the checkpoint's run if it is closed for being idle, and finds it.
  void WithCheckpoint(const Caller& caller, const std::string& name, Reply<v1::Checkpoint> reply,
                      absl::AnyInvocable<void(Run*, const std::string& tag, Reply<v1::Checkpoint>)> then);
  void Notify(const Save& save);
  void Tick();
  // Whether something else than a scrub may want the run's disk.
  bool IsBusy(const Run& run) const;
  // Whether no class would lose anything if the run were closed.
  bool IsIdle(const Run& run) const;
  // What a commit pushes out is on its way. False for what could not be removed and is tried again.
  bool IsRetaining(const Run& run) const;
  void UpdateDegraded(Run* run, Instant now);
  void FreeIdleMemory(Instant now);
  // The classes of the engine drop what they keep for the run, which is about to be closed.
  void ForgetRun(Run* run);

  EngineOptions options_;
  Clock* const clock_;
  SegmentPool* const pool_;
  EngineObserver* const observer_;
  const int64_t started_unix_us_;

  SessionTable sessions_;
  RunTable runs_;
  RunJoiner joiner_;

  // The classes that own the state of saves, from the bottom up.
  SaveTable saves_;
  ExpectedSizes sizes_;
  FilePlacer placer_;
  KeptLayouts layouts_;
  OutcomeHistory history_;
  TrashCollector trash_;
  Uploads uploads_;
  BucketFetches fetches_;
  SharedFetches shared_fetches_;
  Retention retention_;
  DiskRoom disk_;
  RootScanner scanner_;
  MemoryShares shares_;
  AdmissionQueue queue_;
  PartGrants grants_;
  SaveIntake intake_;
  EndedSaves ended_;
  EarlierSaves earlier_;
  WriteStreams streams_;
  MemberFiles files_;
  Publisher publisher_;
  SaveTracker tracker_;
  SaveDriver driver_;
  SaveRecovery recovery_;

  // The classes that own what is read.
  WatchHub watches_;
  DamageMarks damage_;
  LeaseTable leases_;
  Restores restores_;
  ResidentCache residents_;
  Prefetcher prefetcher_;
  Scrubber scrubber_;
  AdoptionJobs adoptions_;
  ResumeBarrier resumes_;

  uint64_t pool_uses_ = 0;  // SegmentPool::uses() at the last tick.
  // When memory was last asked for, in use, or given back. An engine may begin with the copies of saves that
  // it has inherited.
  Instant pool_idle_since_ = clock_->Now();
  // Set while an operator has drained the daemon.
  struct OperatorDrain {
    uid_t uid = 0;
    int64_t unix_us = 0;
    std::string message;
  };
  std::optional<OperatorDrain> operator_drain_;
  bool draining_ = false;  // The daemon ends.
  std::vector<absl::AnyInvocable<void()>> drained_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_ENGINE_IMPL_H_
