// The engine's state and its methods, by subject:
//   engine.cc      the public face, sessions, looking and watching
//   runs.cc        roots, runs, joining, attempts
//   admission.cc   Begin and Extend: sizes, room, order
//   saves.cc       Seal, Abort, Wait, deadlines: how a save ends
//   persist.cc     parts to disk, publish, retention
//   reads.cc       Resume, open checkpoints, leases, pins
//   residents.cc   committed checkpoints that are in memory still
//   prefetch.cc    committed checkpoints that are read into memory
//   adopt.cc       checkpoints of other programs: listed, and made ours
//   scrub.cc       committed checkpoints, read back to see whether they are whole
//   agreement.cc   damage, and that all ranks agree what they resume from
//   succession.cc  sealed saves from one daemon to the next
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

#include "daemon/engine/engine.h"
#include "daemon/engine/save.h"
#include "storage/ledger/ledger.h"

namespace ckptd {

// A rank of a run, as one session has joined it.
struct Member {
  SessionId session = 0;
  std::string instance;
  int rank = 0;
  int world_size = 0;
  int64_t attempt = 0;
};

struct Lease {
  std::string id;
  SessionId session = 0;
  Run* run = nullptr;
  int64_t sequence = 0;
  std::shared_ptr<CheckpointReader> reader;
  ReservationId copy = 0;  // Not 0: the resident copy that it keeps.
  bool resumes = false;    // Of a rank that resumes, and so saves nothing before all ranks have read theirs.
  int64_t read_bytes = 0, total_bytes = 0;  // As its reader said last.
  int64_t manifest_bytes = 0;               // In memory; leases of the same checkpoint may share it.
};

// One rank's files, in memory.
struct ResidentPart {
  SessionId writer = 0;  // Who could write there: 0 or ended, nobody any more.
  std::vector<v1::FileSpec> files;
  std::map<std::string, v1::FilePlacement> placed;
  std::vector<SegmentRef> segments;              // Their memory is there while the copy is held.
  std::vector<storage::v1::FileRecord> records;  // Of `files`, in their order.
  bool checked = false;                          // And nobody could write since.
  bool checking = false, for_good = false;       // Under way; whether nobody can write meanwhile.
  std::vector<absl::AnyInvocable<void(bool)>> waiting;
};

// A committed checkpoint whose memory nobody has needed yet.
struct Resident {
  ReservationId copy = 0;
  std::map<int, ResidentPart> parts;  // By rank; those that have files.
};

// A checkpoint on its way from the disk into memory.
struct Prefetching {
  int64_t sequence = 0;
  std::shared_ptr<CheckpointReader> reader;
  Resident resident;  // Its copy is a reservation still.
  int drawing = 0;    // Parts that wait for their memory.
  absl::Status error;
  Instant begun_at;
  std::vector<Reply<v1::Checkpoint>> waiting;
  std::vector<absl::AnyInvocable<void()>> locating;  // LocateFiles of it.
};

// A checkpoint that is being read back.
struct Scrubbing {
  int64_t sequence = 0;
  std::shared_ptr<CheckpointReader> reader;
  int file = 0;  // Of the manifest.
  int64_t offset = 0;
  bool waiting = false;  // For the disk.
};

struct PendingResume {
  SessionId session = 0;
  int rank = 0;
  int64_t attempt = 0;
  bool strict = false;
  Instant deadline;
  Reply<v1::ResumeResponse> reply;
};

// A rank that has read its part, and waits for the others.
struct PendingFinish {
  SessionId session = 0;
  int rank = 0;
  int64_t attempt = 0;
  int world_size = 0;
  Instant deadline;
  Reply<v1::FinishResumeResponse> reply;
};

// The ranks of an attempt on the checkpoint that they resume from.
struct Agreement {
  int64_t sequence = 0;
  std::string tag;
  std::set<int> finished;             // Ranks that have read their part of it.
  std::map<int, std::string> failed;  // Ranks that could not, and why, until they resume again.
  std::set<int> lost;                 // Ranks whose session has ended, until they join again.
  std::vector<PendingFinish> waiting;
  bool writing = false;  // All ranks have finished, and the ledger writes that down: nothing else ends it.
};

// An attach that waits until the root is open.
struct PendingAttach {
  SessionId session = 0;
  RootAttachment attachment;
  Reply<std::string> reply;
  Instant deadline = Instant::max();
};

// A run that was closed because nobody used it.
struct IdleRun {
  v1::Run description;  // As it was then.
  uid_t uid = 0;
  std::function<void(RootAttachment::Reopened)> reopen;
  std::map<int64_t, Instant> scrub_due;
  std::map<int64_t, int64_t> scrubbed_unix_us;
  std::vector<Reply<std::string>> waiting;  // For it to be open again.
};

// How the pool's memory is shared between users, in segments.
struct MemoryShares {
  std::map<uid_t, int64_t> held;  // What others cannot have: of saves, of readers, and of prefetches.
  int64_t share = 0;              // What each user may hold while others wait for memory.
  int users = 0;                  // That hold memory or wait for it.
  int64_t Held(uid_t uid) const {
    auto found = held.find(uid);
    return found == held.end() ? 0 : found->second;
  }
};

// A save of a user beyond the share has the next memory that comes back, for a limited time.
struct Turn {
  int64_t save = 0;
  uid_t uid = 0;
  Instant until;
};

struct Adoption;  // adopt.cc

struct Run {
  std::string name;  // `runs/{16 hex digits}`.
  std::string path;
  uint64_t device = 0, inode = 0;
  uid_t uid = 0;
  std::unique_ptr<RootIo> io;
  bool open = false;
  bool read_only = false;
  std::vector<PendingAttach> waiting_for_open;
  uid_t opener = 0;             // Who attached first: the root is opened with this user's rights.
  std::set<SessionId> tenants;  // Sessions of other namespaces that have attached this root, while they live.
  std::set<std::shared_ptr<const void>> known;           // Entries in the list of known roots.
  int remembering = 0;                                   // Attaches that wait for that.
  std::set<SessionId> attached;                          // Open sessions that have attached the root.
  std::function<void(RootAttachment::Reopened)> reopen;  // As the last one who attached it found it.
  std::optional<Instant> idle_since;
  Instant lock_deadline;                 // Until then a locked root is tried again.
  std::optional<Instant> open_again_at;  // It was locked; nothing is under way until then.
  ProbeResult probe;
  std::map<int64_t, CommittedCheckpoint> committed;  // By sequence.
  std::vector<RootStore::Damaged> damaged;
  std::map<int64_t, Resident> residents;  // By sequence; the pool may have dropped some.
  std::optional<Prefetching> prefetch;
  std::unique_ptr<Ledger> ledger;
  std::vector<Member> members;
  std::map<int64_t, std::unique_ptr<Save>> saves;  // In flight, by sequence.
  std::deque<std::unique_ptr<Save>> ended;         // The last ones, newest last.
  std::deque<v1::Checkpoint> failures;  // Remembered, newest last; those of earlier daemons included.
  std::optional<int> num_kept_ckpts;
  int last_world_size = 0;
  std::map<int, int64_t> last_part_bytes;  // Rank -> size of its part in the last save that was sealed.
  std::vector<PendingResume> resumes;
  std::map<int64_t, Agreement> agreements;  // By attempt.
  std::optional<Scrubbing> scrub;
  Instant scrub_again_at;
  std::map<int64_t, Instant> scrub_due;         // By sequence.
  std::map<int64_t, int64_t> scrubbed_unix_us;  // When it was last found to be whole.
  int64_t trash_bytes = 0;
  bool emptying_trash = false;
  bool empty_again = false;
  bool trash_stuck = false;  // The last time failed, and that was said.
  std::optional<Instant> empty_again_at;
  bool scanning = false;
  bool scan_again = false;               // Asked for while one ran.
  bool scan_failed = false;              // That was said.
  std::optional<Instant> scan_again_at;  // The last one failed.
  bool degraded = false;
  std::set<int64_t> evicting;                   // On their way out, or
  std::set<int64_t> perhaps_evicted;            // (of these) nobody knows whether they are, before a scan.
  std::set<int64_t> pointed;                    // A pointer file names them: retention leaves them.
  int64_t free_bytes = 0;                       // As last asked,
  int64_t written_before = 0;                   // when its device had been written so much,
  int64_t room_changes_asked = 0;               // and its room had changed so often (room_changes_).
  int64_t outcomes = 0, outcomes_recorded = 0;  // In the history; of them, on disk.
  bool history_failed = false;                  // It could not be written, and that was said.
  std::optional<Instant> record_again_at;
  int making_room = 0;                       // What may change it is about to begin, or to be asked for.
  std::optional<Instant> ask_room_again_at;  // A save waits for room on disk.
  std::shared_ptr<Adoption> adoption;        // Under way; null: none is.
  std::set<std::string> unsynced;  // Foreign tags of which a sync failed, so that no second one is believed.
  // To be resumed from once that is on disk: retention leaves these alone, too.
  std::multiset<int64_t> deciding;
  std::multiset<int64_t> pinning;  // Pins on their way to disk: retention leaves these alone already.
  bool Pinned(const std::pair<const int64_t, CommittedCheckpoint>& entry) const {
    return entry.second.pinned || pinning.contains(entry.first);
  }
};

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
  void RememberFailure(Run* run, v1::Checkpoint failure);
  Member* FindMember(Run* run, SessionId session, int rank);
  Member* FindRank(Run* run, int64_t attempt, int rank);
  void FenceOff(Run* run, int64_t active_attempt);
  void SessionClosed(SessionId session, const std::string& why);

  // admission.cc
  void Begin(const Caller& caller, const v1::BeginRequest& request, Reply<v1::BeginResponse> reply);
  void BeginActivated(SessionId session, const v1::BeginRequest& request, Reply<v1::BeginResponse> reply);
  absl::StatusOr<Save*> NewSave(Run* run, const Member& member, const v1::BeginRequest& request);
  void BeginPart(Save* save, const Member& member, const v1::BeginRequest& request,
                 Reply<v1::BeginResponse> reply);
  absl::Status Place(Save* save, Part& part, const std::vector<v1::FileSpec>& files);
  absl::Status CountFile(Save* save, const Part& part, const v1::FileSpec& file);
  absl::Status NamePointers(Save* save, const Member& member, const v1::BeginRequest& request);
  void AskTarget(Save* save);
  void AskFreeBytes(Save* save);
  void AskRoom(Run* run);
  void Gather(Save* save);
  void TryAdmitAll();
  void AdmitSome();
  bool TryAdmitSave(Save* save, const MemoryShares& shares);
  enum class Scope { kRun, kUser, kAll };
  Scope WaitsFor(const Save& save, const MemoryShares& shares) const;
  void AdmitAgainAt(Instant when);
  void EndTurnWhenOver();
  void GiveTurn(const std::vector<Save*>& waiting);
  bool EndOverShare(Save* save, const MemoryShares& shares);
  MemoryShares SharesOfMemory() const;
  std::map<uid_t, int64_t> HeldByReaders() const;
  absl::Status MayRead(uid_t uid, ReservationId copy, int64_t segments) const;
  int64_t MostPerUser() const;
  int64_t NeededSegments(const Save& save) const;
  absl::Status MayGrow(const Save& save, int64_t segments) const;
  absl::Status ReserveMemory(Save* save);
  bool ReserveDisk(Save* save);
  bool RoomMayCome(const Save& save) const;
  void Admitted(Save* save);
  absl::Status FitReservation(Save* save, Part& part);
  void DrawFor(Save* save, Part& part);
  void Drawn(int64_t save_id, int rank, absl::StatusOr<std::vector<SegmentRef>> segments);
  void AnswerBegins(Save* save, Part& part);
  void AnswerExtends(Part& part);
  v1::BeginResponse GrantOf(Save* save, const Part& part);
  void Extend(const Caller& caller, const v1::ExtendRequest& request, Reply<v1::ExtendResponse> reply);
  int64_t ExpectedPartBytes(const Save& save, int rank) const;
  int64_t ExpectedBytes(const Save& save) const;
  bool SizeKnown(const Save& save, int rank) const;
  std::vector<int> RanksOfUnknownSize(const Save& save) const;
  int64_t OutstandingDiskBytes(uint64_t device, const Save* but) const;
  int64_t WrittenDiskBytes(uint64_t device) const;
  int64_t FreeDiskBytes(const Run& run, const Save* but) const;
  int64_t NeededDiskBytes(const Save& save) const;

  // saves.cc
  absl::StatusOr<Save*> FindSave(const Caller& caller, const v1::SaveKey& key, Member** member = nullptr);
  Save* FindSaveById(int64_t id);
  Save* FindEnded(Run* run, const SaveId& key);
  void Seal(const Caller& caller, const v1::SealRequest& request, Reply<v1::SealResponse> reply);
  absl::Status CheckSeal(Save* save, Part& part, const v1::SealRequest& request);
  void Abort(const Caller& caller, const v1::AbortRequest& request, Reply<v1::AbortResponse> reply);
  void Wait(const Caller& caller, const v1::WaitRequest& request, Reply<v1::WaitResponse> reply);
  std::optional<v1::Checkpoint> PastSave(Run* run, const SaveId& key);
  void FailSave(Save* save, absl::Status error, v1::Level end_level = v1::FAILED);
  void ContinueFailing(Save* save);
  void EndSave(Save* save, v1::Level level);
  void RememberEnd(Save* save);
  void SummarizeEnded();
  void AnswerWaiters(Save* save);
  void RememberSizes(const Save& save);
  absl::StatusOr<WriteTarget> BeginWrite(const Caller& caller, const v1::SaveKey& key,
                                         const std::string& path,
                                         std::function<void(const absl::Status&)> revoke);
  void EndWrite(int64_t id);
  void RevokeWrites(Save* save);
  std::vector<int> MissingRanks(const Save& save) const;

  // persist.cc
  void StartInflight(Save* save);
  void WriteSealedParts(Save* save);
  void WritePart(Save* save, Part& part);
  void PartWritten(int64_t save_id, int rank, absl::StatusOr<storage::v1::PartRecord> record);
  void TryPublish(Save* save);
  void Publish(Save* save);
  void Published(int64_t save_id, PublishResult result);
  void HoldPublish(Save* save, const absl::Status& why);
  void AwaitScan(Run* run);
  void ContinueAfterScan(Run* run);
  storage::v1::ManifestSummary SummaryOf(const Save& save) const;
  void TakePointers(Run* run, PointerFiles pointers);
  void Retain(Run* run);
  void Record(Run* run, const storage::v1::Outcome& outcome);
  void Recorded(Run* run, int64_t number, const absl::Status& recorded);
  void RecordAgain(Run* run);
  static int64_t HeldSequence(const Run& run);  // 0: none.
  std::vector<int64_t> Victims(const Run& run, bool after_next) const;
  void EmptyTrash(Run* run);
  void RescanRoot(Run* run);
  std::vector<int64_t> LeasedSequences(const Run* run) const;

  // reads.cc
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

  // succession.cc
  struct InheritedSave {
    storage::v1::SealedSave record;
    SegmentPool::Inherited memory;  // Segments in the record's order.
    Instant deadline;               // For its root to be opened.
  };
  storage::v1::SealedSave SealedRecord(const Save& save) const;
  void KeepSealed(Save* save);
  void DropKept(Save* save);
  void Forget(const storage::v1::SealedSave& record);
  void Inherit(std::vector<storage::v1::SealedSave> saves);
  static bool IsOf(const Run& run, const InheritedSave& save);
  int64_t HighestInherited(const Run& run) const;
  void AdoptInherited(Run* run);
  std::string ObstacleTo(Run* run, const storage::v1::SealedSave& record);
  void LetGo(const InheritedSave& save, const std::string& why);
  void AdoptSave(Run* run, InheritedSave inherited);
  void ExpireInherited();

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
  static bool Retaining(const Run& run);
  bool Sees(const Caller& caller, const Run& run) const;
  bool HasAttached(const Caller& caller, const Run& run) const;

  struct Write {  // A WriteFile that is open.
    int64_t save = 0;
    int rank = 0;
    std::function<void(const absl::Status&)> revoke;
  };

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
  SealJournal* const journal_;  // May be null.
  const int64_t started_unix_us_;

  std::map<SessionId, SessionInfo> sessions_;
  std::map<SessionId, std::set<ReservationId>> mapped_;  // Copies that it holds, for it may map them.
  std::map<std::string, std::unique_ptr<Run>> runs_;     // By name.
  std::map<std::string, IdleRun> idle_;                  // By name.
  std::map<int64_t, Save*> saves_by_id_;
  std::vector<Save*> ended_whole_;        // Have ended, and have their parts still.
  std::vector<InheritedSave> inherited_;  // Whose roots are not open yet.
  std::map<std::string, Lease> leases_;
  std::map<int64_t, Write> writes_;  // By BeginWrite's id.
  std::map<int64_t, Watcher> watchers_;
  std::map<uid_t, int64_t> files_in_flight_;  // Of saves that have not ended.
  std::map<uint64_t, int64_t> spent_;         // Device -> what saves that have ended wrote there.
  std::map<uint64_t, int64_t> room_changes_;  // Device -> how often the engine may have freed room there.
  int64_t next_id_ = 1;
  bool admitting_ = false, admit_again_ = false;
  std::optional<Instant> admit_at_;  // Time alone may let a save in then.
  std::optional<Turn> turn_;
  Instant next_turn_at_;
  std::map<uid_t, Instant> last_turn_;  // When it ended.
  bool draining_ = false;
  std::vector<absl::AnyInvocable<void()>> drained_;
};

// persist.cc
inline void SetTime(int64_t unix_us, google::protobuf::Timestamp* time) {
  time->set_seconds(unix_us / 1'000'000);
  time->set_nanos(static_cast<int32_t>(unix_us % 1'000'000 * 1000));
}

// To whole pages, on which files begin in a part.
inline constexpr int64_t kPage = 4096;
inline int64_t RoundUp(int64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }
std::vector<FileImage> ImagesOf(const std::vector<v1::FileSpec>& files,
                                const std::map<std::string, v1::FilePlacement>& placed,
                                const std::vector<SegmentRef>& segments);

// validate.cc: what a request may say.
absl::Status CheckBegin(const v1::BeginRequest& request, int world_size);
absl::Status CheckDamage(const v1::Damage& damage);
absl::Status CheckFiles(const google::protobuf::RepeatedPtrField<v1::FileSpec>& files);
// A duration of a request: the default when unset; INVALID_ARGUMENT outside [least, most].
absl::StatusOr<Duration> CheckDuration(bool set, const google::protobuf::Duration& value, const char* field,
                                       Duration otherwise, Duration least, Duration most);
std::optional<std::pair<std::string, std::string>> ParseCheckpointName(
    const std::string& name);  // Run name, tag.
absl::Status NotJoined(const std::string& run, int rank);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_ENGINE_IMPL_H_
