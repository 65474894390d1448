// The state of a run: a root directory, the job that saves there, and its checkpoints.
//
// The engine's classes take over the fields one after the other, each with the subject that it is about.
#ifndef CKPTD_DAEMON_ENGINE_RUN_H_
#define CKPTD_DAEMON_ENGINE_RUN_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ckptd/v1/messages.pb.h"
#include "ckptd/v1/types.pb.h"
#include "daemon/engine/engine_types.h"
#include "daemon/engine/root_io.h"
#include "daemon/engine/save.h"
#include "daemon/memory/segment_pool.h"
#include "storage/base/clock.h"
#include "storage/commit/types.h"
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
  std::vector<DamagedCheckpoint> damaged;
  std::map<int64_t, Resident> residents;  // By sequence; the pool may have dropped some.
  std::optional<Prefetching> prefetch;
  std::unique_ptr<Ledger> ledger;
  std::vector<Member> members;
  std::map<int64_t, std::unique_ptr<Save>> saves;  // In flight, by sequence.
  std::vector<PendingResume> resumes;
  std::map<int64_t, Agreement> agreements;  // By attempt.
  std::optional<Scrubbing> scrub;
  Instant scrub_again_at;
  std::map<int64_t, Instant> scrub_due;         // By sequence.
  std::map<int64_t, int64_t> scrubbed_unix_us;  // When it was last found to be whole.
  bool scanning = false;
  bool degraded = false;
  std::set<int64_t> evicting;          // On their way out, or
  std::set<int64_t> perhaps_evicted;   // (of these) nobody knows whether they are, before a scan.
  std::shared_ptr<Adoption> adoption;  // Under way; null: none is.
  std::set<std::string> unsynced;  // Foreign tags of which a sync failed, so that no second one is believed.
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_RUN_H_
