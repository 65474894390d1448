// Resident copies: committed checkpoints whose bytes are still in memory, and the access of readers to them.
#ifndef CKPTD_DAEMON_ENGINE_READING_RESIDENT_CACHE_H_
#define CKPTD_DAEMON_ENGINE_READING_RESIDENT_CACHE_H_

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "ckptd/v1/messages.pb.h"
#include "daemon/engine/reading/lease_table.h"
#include "daemon/engine/run/file_places.h"
#include "daemon/engine/run/part_layout.h"
#include "daemon/engine/run/run.h"
#include "daemon/engine/run/run_states.h"
#include "daemon/engine/run/save.h"
#include "daemon/engine/run/session_table.h"
#include "daemon/engine/seams/engine_types.h"
#include "daemon/memory/segment_pool.h"

namespace ckptd {

// One rank's files, in memory.
struct ResidentPart {
  SessionId writer = 0;  // The session that could write there; 0 or ended: no session can any more.
  std::shared_ptr<const FilePlaces> placed;
  std::vector<SealedFile> files;                 // As `placed` has them.
  std::vector<SegmentRef> segments;              // Valid while the copy is held.
  std::vector<storage::v1::FileRecord> records;  // Of `files`, in the same order.
  bool checked = false;                          // Matches the records, and no session could write since.
};

// A committed checkpoint in memory. No save has needed this memory yet.
struct Resident {
  ReservationId copy = 0;
  std::map<int, ResidentPart> parts;  // By rank; only ranks that have files.
};

// Tracks which committed checkpoints have a copy in memory, and what holds these copies: leases that have
// asked where the files lie, and sessions that may have mapped them. The pool may take back any copy that
// nothing holds, at any time.
//
// A copy's bytes are compared with the checksums that are on disk before a reader gets them. While the
// session that wrote them is open it could change them, so they are compared again for every reader.
class ResidentCache {
 public:
  struct Options {
    int32_t chunk_bytes = 0;
    int max_reader_pool_percent_per_user = 100;
  };

  ResidentCache(Options options, SegmentPool* pool, EngineObserver* observer, const SessionTable* sessions,
                const LeaseTable* leases)
      : options_(options), pool_(pool), observer_(observer), sessions_(sessions), leases_(leases) {}

  void SetMostReaderPercentPerUser(int percent) { options_.max_reader_pool_percent_per_user = percent; }

  // ---- copies

  // The save is committed: its memory becomes a copy. True: the cache has taken over save.reservation.
  bool Keep(const Save& save);
  // Memory for a checkpoint that is read ahead. It counts as held by readers until AddPrefetched or
  // CancelPrefetch. POOL_EXHAUSTED when it would take memory from trainers or from the next save.
  absl::StatusOr<ReservationId> ReserveForPrefetch(const Run& run, int segments);
  void AddPrefetched(Run* run, int64_t sequence, Resident resident);
  void CancelPrefetch(ReservationId copy);

  bool IsResident(const Run& run, int64_t sequence) const;
  void Drop(Run* run, int64_t sequence);
  // Drops copies that the pool has taken back, and those of checkpoints that are damaged or gone.
  void Prune(Run* run);
  // All ranks have read this checkpoint, so their leases hold its copy no longer. Drops the copy if the run's
  // next save would have to wait for its memory.
  void MakeWayForSaves(Run* run, int64_t sequence);

  // ---- readers

  // Answers where the lease's files lie in memory, and holds the copy for the lease. The answer is empty if
  // there is no copy, if the copy is not what was saved, or if holding it would take memory that saves need.
  void Locate(const Lease& lease, const v1::LocateFilesRequest& request,
              Reply<v1::LocateFilesResponse> reply);
  // How many segments the readers of each user keep from others.
  std::map<uid_t, int64_t> HeldByReaders() const;

  // ---- ends

  void OnLeaseReleased(const Lease& lease);
  // The session's mappings end with it. Before SegmentPool::SessionEnded.
  void ReleaseMappings(SessionId session);
  // The session can no longer write: compares what it wrote with the checksums, for the last time.
  void OnSessionEnded(SessionId session);
  void OnRunClosed(Run* run);

 private:
  // A comparison of a part with its records that is under way.
  struct Check {
    bool for_good = false;  // No session can write meanwhile.
    std::vector<absl::AnyInvocable<void(bool)>> waiting;
  };
  struct Copy {
    Resident resident;
    std::map<int, Check> checks;  // By rank.
  };
  struct Hold {
    SessionId session = 0;
    ReservationId copy = 0;
  };
  using Copies = std::map<int64_t, Copy>;  // By sequence.

  Copy* FindCopy(const Run* run, int64_t sequence);
  // Answers whether the part's bytes are now those that were saved.
  void CheckPart(Run* run, int64_t sequence, int rank, absl::AnyInvocable<void(bool)> done);
  void PartChecked(Run* run, int64_t sequence, int rank, ReservationId copy, const absl::Status& found);
  // Holds the copy for the lease. False: the reader has to read the disk.
  bool HoldFor(const Lease& lease, const SessionInfo& reader, const Resident& resident);
  bool IsHeldByLease(ReservationId copy) const;
  // Whether a save of the same size finds memory while this copy is being read.
  bool LeavesRoom(const Resident& resident, bool held) const;
  absl::Status CheckReaderLimit(uid_t uid, ReservationId copy, int64_t segments) const;
  void CheckParts(Run* run, int64_t sequence, const v1::LocateFilesRequest& request, std::vector<int> ranks,
                  Reply<v1::LocateFilesResponse> reply);
  void AnswerLocate(Run* run, int64_t sequence, const v1::LocateFilesRequest& request,
                    const std::vector<int>& ranks, Reply<v1::LocateFilesResponse> reply);
  void LetMap(SessionId session, const Resident& resident, const std::vector<int>& ranks,
              absl::AnyInvocable<void(bool)> done);

  Options options_;
  SegmentPool* const pool_;
  EngineObserver* const observer_;
  const SessionTable* const sessions_;
  const LeaseTable* const leases_;
  RunStates<Copies> copies_;
  std::map<std::string, Hold> holds_;                    // By lease.
  std::map<SessionId, std::set<ReservationId>> mapped_;  // Copies held because the session may map them.
  std::map<ReservationId, uid_t> prefetching_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_READING_RESIDENT_CACHE_H_
