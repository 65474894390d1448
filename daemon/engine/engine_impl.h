// The engine's state and its methods, by subject:
//   engine.cc      the public face, sessions, looking and watching
//   runs.cc        roots, runs, joining, attempts
//   save_requests.cc  Begin, Extend, Seal, Abort, Wait, WriteFile
//   reader_memory.cc  the memory that readers hold
//   reads.cc       Resume, open checkpoints, leases, pins
//   residents.cc   committed checkpoints that are in memory still
//   prefetch.cc    committed checkpoints that are read into memory
//   adopt.cc       checkpoints of other programs: listed, and made ours
//   scrub.cc       committed checkpoints, read back to see whether they are whole
//   agreement.cc   damage, and that all ranks agree what they resume from
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

#include "daemon/engine/admission_queue.h"
#include "daemon/engine/disk_room.h"
#include "daemon/engine/ended_saves.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/expected_sizes.h"
#include "daemon/engine/file_placer.h"
#include "daemon/engine/memory_shares.h"
#include "daemon/engine/outcome_history.h"
#include "daemon/engine/part_grants.h"
#include "daemon/engine/publisher.h"
#include "daemon/engine/retention.h"
#include "daemon/engine/root_scanner.h"
#include "daemon/engine/run.h"
#include "daemon/engine/save.h"
#include "daemon/engine/save_intake.h"
#include "daemon/engine/save_recovery.h"
#include "daemon/engine/save_table.h"
#include "daemon/engine/save_tracker.h"
#include "daemon/engine/trash_collector.h"
#include "daemon/engine/write_streams.h"
#include "storage/ledger/ledger.h"

namespace ckptd {

class Engine::Impl {
 public:
  Impl(EngineOptions options, Clock* clock, SegmentPool* pool, EngineObserver* observer,
       SealJournal* journal);

  // runs.cc
  absl::StatusOr<Run*> FindRun(const Caller& caller, const std::string& name, bool must_be_open = true);
  absl::StatusOr<Run*> RunOfCheckpointName(const Caller& caller, const std::string& name, std::string* tag);
  void AttachRoot(SessionId session, RootAttachment attachment, Reply<std::string> reply);
  void AcceptAttach(Run* run, PendingAttach attach);
  void OpenRoot(Run* run);
  void OnRootOpened(Run* run, absl::StatusOr<RootSnapshot> snapshot);
  void Adopt(Run* run, RootSnapshot snapshot);
  void RecordUnheard(Run* run);
  bool IsIdle(const Run& run) const;
  void CloseIdle(Run* run);
  void CloseIdleRuns(Instant now);
  static void ExpireAttaches(Run* run, Instant now);
  absl::Status MakeWayForRoot(const RootAttachment& attachment);
  void WakeRun(const std::string& name, Reply<std::string> done);
  // Calls `then` with the reply when the run is open, if it was closed for being idle; else at once.
  template <typename T>
  void WhenAwake(const Caller& caller, const std::string& name, Reply<T> reply,
                 absl::AnyInvocable<void(Reply<T>)> then) {
    const auto idle = idle_.find(name);
    if (idle == idle_.end() || (!caller.privileged && caller.uid != idle->second.uid))
      return then(std::move(reply));
    WakeRun(name,
            [reply = std::move(reply), then = std::move(then)](absl::StatusOr<std::string> run) mutable {
              if (!run.ok()) return reply(run.status());
              then(std::move(reply));
            });
  }
  void JoinRun(const Caller& caller, const v1::JoinRunRequest& request, Reply<v1::JoinRunResponse> reply);
  void Joined(SessionId session, const std::string& run_name, const v1::JoinRunRequest& request,
              absl::StatusOr<int64_t> attempt, Reply<v1::JoinRunResponse> reply);
  void ReportOrphans(Run* run, int64_t attempt, const v1::JoinRunRequest& request);
  Member* FindMember(Run* run, SessionId session, int rank);
  Member* FindRank(Run* run, int64_t attempt, int rank);
  void FenceOff(Run* run, int64_t active_attempt);
  void SessionClosed(SessionId session, const std::string& why);

  // save_requests.cc
  void Begin(const Caller& caller, const v1::BeginRequest& request, Reply<v1::BeginResponse> reply);
  // The answer to a Begin of a save that has ended; nullopt if it has not.
  std::optional<absl::StatusOr<v1::BeginResponse>> AnswerIfEnded(Run* run, const SaveId& key);
  void Extend(const Caller& caller, const v1::ExtendRequest& request, Reply<v1::ExtendResponse> reply);
  absl::StatusOr<Save*> FindSave(const Caller& caller, const v1::SaveKey& key, Member** member = nullptr);
  absl::StatusOr<Save*> FindSaveByName(const Caller& caller, const std::string& name);
  void Seal(const Caller& caller, const v1::SealRequest& request, Reply<v1::SealResponse> reply);
  void Abort(const Caller& caller, const v1::AbortRequest& request, Reply<v1::AbortResponse> reply);
  // What a Wait is about: a save in flight, or how one has ended.
  struct Awaited {
    Save* save = nullptr;
    std::optional<v1::Checkpoint> past;
  };
  absl::StatusOr<Awaited> FindAwaitedByName(const Caller& caller, const std::string& name);
  absl::StatusOr<Awaited> FindAwaitedByKey(const Caller& caller, const v1::WaitRequest& request);
  void Wait(const Caller& caller, const v1::WaitRequest& request, Reply<v1::WaitResponse> reply);
  absl::StatusOr<WriteTarget> BeginWrite(const Caller& caller, const v1::SaveKey& key,
                                         const std::string& path,
                                         std::function<void(const absl::Status&)> revoke);

  // reader_memory.cc
  std::map<uid_t, int64_t> HeldByReaders() const;
  absl::Status MayRead(uid_t uid, ReservationId copy, int64_t segments) const;

  // reads.cc
  std::vector<int64_t> LeasedSequences(const Run* run) const;
  void Resume(const Caller& caller, const v1::ResumeRequest& request, Reply<v1::ResumeResponse> reply);
  void ContinueResumes(Run* run);
  void AnswerResume(Run* run, PendingResume pending);
  void GiveResume(Run* run, const Ledger::ResumeChoice& choice, PendingResume pending);
  void OpenLease(SessionId session, Run* run, int64_t sequence, bool resumes,
                 absl::AnyInvocable<void(absl::StatusOr<std::pair<std::string, v1::Checkpoint>>)> done);
  void OpenCheckpoint(const Caller& caller, const v1::OpenCheckpointRequest& request,
                      Reply<v1::OpenCheckpointResponse> reply);
  void OpenCheckpoint(SessionId session, Run* run, const std::string& tag, bool strict,
                      Reply<v1::OpenCheckpointResponse> reply);
  absl::Status CountManifest(Lease& lease);
  absl::StatusOr<Lease*> FindLease(const Caller& caller, const std::string& id);
  void ReportReading(const Caller& caller, const v1::ReportReadingRequest& request,
                     Reply<v1::ReportReadingResponse> reply);
  void NotifyReading(const Lease& lease, bool ended);
  void CloseLease(std::map<std::string, Lease>::iterator lease);
  void SetPinned(const Caller& caller, const std::string& name, bool pinned, Reply<v1::Checkpoint> reply);

  // residents.cc
  void KeepResident(Save* save);
  void PruneResidents(Run* run);
  bool IsResident(const Run& run, int64_t sequence) const;
  void DropResident(Run* run, int64_t sequence);
  static int64_t BytesOf(const Resident& resident);
  bool LeavesRoom(const Resident& resident, bool held) const;
  void MakeWayForSaves(Run* run, int64_t sequence);
  void CheckResidentsOf(SessionId session);
  void CheckResident(Run* run, int64_t sequence, int rank, absl::AnyInvocable<void(bool)> done);
  void ResidentChecked(Run* run, int64_t sequence, int rank, ReservationId copy, const absl::Status& found);
  void LocateFiles(const Caller& caller, const v1::LocateFilesRequest& request,
                   Reply<v1::LocateFilesResponse> reply);
  void GiveLocated(Run* run, int64_t sequence, const v1::LocateFilesRequest& request,
                   const std::vector<int>& ranks, Reply<v1::LocateFilesResponse> reply);
  void LetMap(SessionId session, const Resident& resident, const std::vector<int>& ranks,
              absl::AnyInvocable<void(bool)> done);

  // prefetch.cc
  void Prefetch(const Caller& caller, const std::string& name, Reply<v1::Checkpoint> reply);
  void PrefetchOpened(Run* run, absl::StatusOr<std::shared_ptr<CheckpointReader>> reader);
  absl::Status RoomToPrefetch(const Run& run, int64_t bytes) const;
  void ReadPrefetched(Run* run);
  void EndPrefetch(Run* run, absl::Status end);

  // scrub.cc
  bool IsBusy(const Run& run) const;
  void Scrub(Run* run, Instant now);
  void StartScrub(Run* run, Instant now);
  void ScrubChunk(Run* run);
  void EndScrub(Run* run, const absl::Status& found);

  // adopt.cc
  void ListForeign(Run* run, v1::ListCheckpointsResponse response, Reply<v1::ListCheckpointsResponse> reply);
  int64_t StartAdoption(const Caller& caller, const v1::AdoptCheckpointsRequest& request,
                        std::function<bool(const v1::AdoptCheckpointsResponse&)> event,
                        std::function<void(const absl::Status&)> ended);
  void StopAdoption(int64_t id);
  // In a root that has checkpoints of another program, and never had one of ours.
  void ReserveForAdoption(const Run& run, const RootSnapshot& snapshot, storage::v1::RunRecord& record);
  void PlanAdoption(Run* run, std::vector<ForeignCheckpoint> found);
  void AdoptNext(Run* run);
  void PlaceAdopted(Run* run, ForeignSurvey survey);
  void AdoptAs(Run* run, ForeignSurvey survey, int64_t sequence);
  void Adopted(Run* run, const storage::v1::ManifestSummary& summary, PublishResult result);
  void RefuseAdoption(Run* run, const absl::Status& why);
  void TellAdoption(Run* run, v1::AdoptCheckpointsResponse event);
  void EndAdoption(Run* run, const absl::Status& status);
  void ShowAdoption(Run* run, Instant now);

  // agreement.cc
  static bool TellsOfDamage(const Run& run, const absl::Status& opened);  // Of what could not be opened.
  static storage::v1::Damage DamageOf(const absl::Status& opened);
  static void ToWire(const storage::v1::Damage& known, v1::Damage* damage);
  // That is not damaged, nor on its way out; null: none.
  static const CommittedCheckpoint* Newest(const Run& run);
  static bool IsDamaged(const Run& run, int64_t sequence);
  // Damaged checkpoints that are newer than this one, newest first, and those of which that is not known.
  std::vector<v1::Checkpoint> PassedOver(const Run& run, int64_t sequence) const;
  static absl::Status DamagedError(const Run& run, const std::vector<v1::Checkpoint>& passed,
                                   const std::string& what_to_do);
  static absl::Status DamageError(const storage::v1::Damage& damage);
  // Not offered any more from now on; `done` when it is on disk, or cannot be written there.
  void MarkDamaged(Run* run, int64_t sequence, storage::v1::Damage damage, absl::AnyInvocable<void()> done);
  void ReportDamage(const Caller& caller, const v1::ReportDamageRequest& request,
                    Reply<v1::ReportDamageResponse> reply);
  void ClearDamage(const Caller& caller, const std::string& name, Reply<v1::Checkpoint> reply);
  void FinishResume(const Caller& caller, const v1::FinishResumeRequest& request,
                    Reply<v1::FinishResumeResponse> reply);
  void Finish(Run* run, const v1::FinishResumeRequest& request, PendingFinish finish);
  void ExpectAllRanks(Run* run, int64_t attempt);
  void FailAgreement(Run* run, int64_t attempt, const absl::Status& error);
  void AnswerFinishes(Run* run, int64_t attempt, const absl::Status& status);
  void FailAgreements(Run* run, int64_t sequence);
  void ExpireFinishes(Run* run, Instant now);

  // engine.cc
  v1::Checkpoint Describe(const Save& save, v1::View view) const;
  void DescribeCommit(const Run& run, int64_t sequence, v1::Checkpoint& checkpoint) const;
  v1::Checkpoint Describe(const Run& run, const CommittedCheckpoint& committed) const;
  v1::Run Describe(const Run& run) const;
  void GetCheckpoint(const Caller& caller, const v1::GetCheckpointRequest& request,
                     Reply<v1::Checkpoint> reply);
  void ListCheckpoints(const Caller& caller, const v1::ListCheckpointsRequest& request,
                       Reply<v1::ListCheckpointsResponse> reply);
  void Notify(const Save& save);
  void NotifyWatchers(const Run& run, v1::WatchResponse event);
  void Tick();
  void CheckDrained();
  // A save has become a checkpoint, which takes the place of an older one with the same tag.
  void OnCommitted(Save* save, CommittedCheckpoint committed, PointerFiles pointers);
  // What a commit pushes out is on its way. False for what could not be removed and is tried again.
  bool IsRetaining(const Run& run) const;
  void UpdateDegraded(Run* run, Instant now);
  // The classes of the engine drop what they keep for the run, which is about to be closed.
  void ForgetRun(Run* run);
  bool Sees(const Caller& caller, const Run& run) const;
  bool HasAttached(const Caller& caller, const Run& run) const;

  struct Watcher {
    Caller caller;
    std::string run;
    Duration interval;
    Instant next;
    std::function<bool(const v1::WatchResponse&)> event;
  };

  const EngineOptions options_;
  Clock* const clock_;
  SegmentPool* const pool_;
  EngineObserver* const observer_;
  const int64_t started_unix_us_;

  std::map<SessionId, SessionInfo> sessions_;
  std::map<SessionId, std::set<ReservationId>> mapped_;  // Copies that it holds, for it may map them.
  std::map<std::string, std::unique_ptr<Run>> runs_;     // By name.
  std::map<std::string, IdleRun> idle_;                  // By name.
  std::map<std::string, Lease> leases_;
  std::map<int64_t, Watcher> watchers_;
  int64_t next_id_ = 1;

  // The classes that own the state of saves, from the bottom up.
  SaveTable saves_;
  ExpectedSizes sizes_;
  FilePlacer placer_;
  OutcomeHistory history_;
  TrashCollector trash_;
  Retention retention_;
  DiskRoom disk_;
  RootScanner scanner_;
  MemoryShares shares_;
  AdmissionQueue queue_;
  PartGrants grants_;
  SaveIntake intake_;
  EndedSaves ended_;
  WriteStreams streams_;
  Publisher publisher_;
  SaveTracker tracker_;
  SaveRecovery recovery_;

  bool draining_ = false;
  std::vector<absl::AnyInvocable<void()>> drained_;
};

inline void SetTime(int64_t unix_us, google::protobuf::Timestamp* time) {
  time->set_seconds(unix_us / 1'000'000);
  time->set_nanos(static_cast<int32_t>(unix_us % 1'000'000 * 1000));
}

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_ENGINE_IMPL_H_
