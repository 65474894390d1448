// Leases: checkpoints that sessions have open for reading.
#ifndef CKPTD_DAEMON_ENGINE_READING_LEASE_TABLE_H_
#define CKPTD_DAEMON_ENGINE_READING_LEASE_TABLE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "ckptd/v1/messages.pb.h"
#include "ckptd/v1/types.pb.h"
#include "daemon/engine/run/run.h"
#include "daemon/engine/run/session_table.h"
#include "daemon/engine/run/wire.h"
#include "daemon/engine/seams/engine_types.h"
#include "daemon/engine/seams/root_io.h"

namespace ckptd {

// A checkpoint that a session has open, or is opening.
struct Lease {
  std::string id;  // `leases/{number}`.
  SessionId session = 0;
  Run* run = nullptr;
  int64_t sequence = 0;
  // The rank resumes from it, so it begins no save before every rank has read its part.
  bool resumes = false;
  std::shared_ptr<CheckpointReader> reader;  // Null until the checkpoint is open.
  int64_t read_bytes = 0, total_bytes = 0;   // As the client last reported.
  int64_t manifest_bytes = 0;                // In memory; leases of the same checkpoint may share it.
};

// Owns all leases and the limits on them. Retention leaves leased checkpoints alone from the moment that Open
// is called. A lease is released when its client closes it or its session ends.
class LeaseTable {
 public:
  struct Limits {
    int leases_per_uid = 0;
    int64_t manifest_bytes_per_uid = 0;
  };
  struct Hooks {
    DescribeCheckpoint describe;
    // The checkpoint could not be opened because it is damaged; `done` runs when that is on disk.
    MarkAsDamaged mark_damaged;
    // A client has reported progress, or a lease with progress has ended.
    std::function<void(const Run&, v1::WatchResponse)> notify;
    // The lease is not in the table any more.
    std::function<void(const Lease&)> released;
    // The checkpoint is open.
    std::function<void(const Lease&)> opened = [](const Lease&) {};
  };
  // The lease's id, and the checkpoint with its list of files.
  using Opened = absl::AnyInvocable<void(absl::StatusOr<std::pair<std::string, v1::Checkpoint>>)>;

  LeaseTable(Limits limits, const SessionTable* sessions, Hooks hooks)
      : limits_(limits), sessions_(sessions), hooks_(std::move(hooks)) {}

  void SetLimits(Limits limits) { limits_ = limits; }

  // Opens a committed checkpoint for a session. NO_CHECKPOINT, SESSION_LOST, LIMIT_EXCEEDED, or the error of
  // opening it; a damaged checkpoint is marked before `done` runs.
  void Open(SessionId session, Run* run, int64_t sequence, bool resumes, Opened done);

  // An open lease of the caller's session; UNKNOWN_LEASE otherwise.
  absl::StatusOr<const Lease*> Find(const Caller& caller, const std::string& id) const;
  // A lease of any session, open or not; null: it was released.
  const Lease* Find(const std::string& id) const;

  // No-op for a lease that was released. PERMISSION_DENIED for another session's.
  absl::Status Close(const Caller& caller, const std::string& id);
  // How far the client has read. INVALID_ARGUMENT for impossible counts.
  absl::Status Report(const Caller& caller, const v1::ReportReadingRequest& request);

  // How many leases a checkpoint, or any checkpoint of the run, has.
  int Count(const Run& run, int64_t sequence) const;
  int CountOf(SessionId session) const;
  bool HasAny(const Run& run) const;
  std::vector<int64_t> LeasedSequences(const Run& run) const;
  // Leases of the active attempt's ranks that resume from this checkpoint. Those of a fenced attempt have not
  // agreed to anything.
  std::vector<std::string> ResumingFrom(const Run& run, int64_t sequence) const;

  void OnSessionEnded(SessionId session);

 private:
  using Leases = std::map<std::string, Lease>;

  absl::Status CheckMayOpen(SessionId session, const Run& run, int64_t sequence) const;
  void ReaderOpened(const std::string& id, const std::string& tag,
                    absl::StatusOr<std::shared_ptr<CheckpointReader>> reader, Opened done);
  v1::Checkpoint DescribeOpen(const Lease& lease) const;
  absl::Status CountManifest(Lease& lease) const;
  void Notify(const Lease& lease, bool ended) const;
  void Release(Leases::iterator lease);
  static std::pair<const Run*, int64_t> CheckpointOf(const Lease& lease);

  Limits limits_;
  const SessionTable* const sessions_;
  const Hooks hooks_;
  Leases leases_;  // By id.
  // How many leases each checkpoint has, because a page of a list asks for each of its checkpoints.
  std::map<std::pair<const Run*, int64_t>, int> counts_;
  int64_t next_id_ = 1;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_READING_LEASE_TABLE_H_
