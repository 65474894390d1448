// A checkpoint between Begin and the end of its save, with one part for each rank. Plain state:
// AdmissionQueue, SaveTracker and the other classes of the engine work on it.
#ifndef CKPTD_DAEMON_ENGINE_RUN_SAVE_H_
#define CKPTD_DAEMON_ENGINE_RUN_SAVE_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "ckptd/v1/messages.pb.h"
#include "ckptd/v1/types.pb.h"
#include "daemon/engine/run/file_places.h"
#include "daemon/engine/run/part_layout.h"
#include "daemon/engine/run/path_claims.h"
#include "daemon/engine/run/save_lifecycle.h"
#include "daemon/engine/seams/engine_types.h"
#include "daemon/engine/seams/save_id.h"
#include "daemon/memory/segment_pool.h"
#include "storage/base/clock.h"

namespace ckptd {

class CheckpointReader;
struct Run;

// A Begin that is not answered yet.
struct BeginReply {
  Reply<v1::BeginResponse> reply;
  bool names_layout = false;  // The request named a layout, so the answer has no placements.
};

// One rank's contribution to a save.
struct Part {
  int rank = 0;
  SessionId session = 0;  // 0 until the rank has called Begin.
  std::string instance;   // The client process, as it named itself.
  bool begun = false;
  bool growing = false;          // The rank may add files with Extend.
  bool share_unchanged = false;  // Files that the base has with the same bytes are not written.
  bool granted = false;          // Begin was answered with memory.
  bool sealed = false;           // The rank has written all its bytes into memory.
  bool durable = false;          // The part record is on disk.
  bool writing = false;          // RootIo::WritePart has not called back yet.
  // The files of Begin, in the request's order; empty if it named a layout.
  std::vector<const PlacedFile*> asked;
  // Where the files lie in the part. Shared with the layouts that are kept and with resident copies, once no file is
  // added any more.
  std::shared_ptr<FilePlaces> placed = std::make_shared<FilePlaces>();
  int64_t layout = 0;                // What KeptLayouts calls these files; 0: it does not keep them.
  int64_t end = 0;                   // First free offset of the part.
  SessionId reserved_for = 0;        // The session that the reservation names.
  int reserved = 0;                  // Segments reserved.
  bool drawing = false;              // SegmentPool::Draw has not called back yet.
  std::vector<SegmentRef> segments;  // Drawn so far, in part order.
  std::vector<SealedFile> files;     // The files of Seal, as `placed` has them.
  storage::v1::PartRecord record;    // Valid once `durable`.
  std::vector<BeginReply> begin_replies;
  // Extends that wait for their segments; answered when `segments` covers `end`.
  std::vector<std::pair<v1::ExtendRequest, Reply<v1::ExtendResponse>>> extend_replies;
  int open_writes = 0;  // WriteFile streams.
};

// What a save waits for before it is admitted.
enum class WaitsFor {
  kNothing,
  kSizes,       // Of ranks that have not begun.
  kOlderSaves,  // Of its run.
  kMemory,
  kDisk,
  kOtherNodes,  // To have room, too.
};

// A Wait call.
struct Waiter {
  int rank = -1;  // -1 if the caller asked by the checkpoint's name and not as a rank.
  v1::Level level = v1::COMMITTED;
  v1::View view = v1::BASIC;
  Instant deadline;
  Reply<v1::WaitResponse> reply;
};

// For how long a save with SKIP waits for what is no room: an answer of the file system, or of the ledger.
inline constexpr Duration kLongestSilenceForSkip = std::chrono::seconds(3);

// What becomes of the files of this node's part.
enum class PartFiles {
  kNone,        // Authority::OpenPart was not called, or has changed nothing.
  kOpening,     // It has not called back yet.
  kOpen,        // They may be written.
  kFinishing,   // Authority::FinishPart has not called back yet.
  kDiscarding,  // RootIo::Discard has not called back yet.
};

// This node's part of a save, as the run's authority knows it.
struct MemberPart {
  std::vector<int> ranks = {};  // Those of this node, in order; empty: all.
  bool promised = false;        // Other nodes count on the memory of this node's ranks.
  bool released = false;        // They do so no longer.
  std::string inflight = {};    // Of a shared run, once all nodes have room: the directory of its files.
  PartFiles files = PartFiles::kNone;
};

// A checkpoint on its way to disk.
struct Save {
  int64_t id = 0;  // Unique in this daemon; names the save towards RootIo.
  Run* run = nullptr;
  SaveId key;
  int64_t sequence = 0;
  std::optional<int64_t> step;
  int world_size = 0;
  v1::BusyPolicy busy = v1::WAIT;
  std::optional<storage::v1::RetentionPolicy> retention;  // Unset: no rank that has begun names one.
  std::set<int> contributors;  // Ranks; empty: all. The parts of the others are empty and sealed.
  std::map<std::string, double> metrics;
  std::map<std::string, std::string> pointers;  // Those of all ranks that have begun: name -> content.
  bool target_asked = false;                    // RootIo::CheckTarget was called.
  std::string suspect;                          // Not empty: why a rank calls the state suspect.

  SaveLifecycle life;
  std::map<int, Part> parts;      // By rank; holds ranks that have begun or have memory.
  PathClaims claims;              // Of the files of all ranks.
  int64_t counted_files = 0;      // Files of this save that count for limits.files_per_uid.
  int64_t list_bytes = 0;         // Size of the list of files in the manifest.
  ReservationId reservation = 0;  // 0: the save holds no memory.
  int64_t disk_reserved = 0;
  std::optional<Instant> writes_held_until;     // Set at the first seal, if other ranks still copy.
  std::optional<storage::v1::SealedSave> kept;  // The entry in the seal journal, without its parts.
  // The checkpoint with which parts share their unchanged files. Null: there is none.
  std::shared_ptr<CheckpointReader> base;
  bool base_asked = false, base_known = false;
  std::shared_ptr<std::atomic<int64_t>> written = std::make_shared<std::atomic<int64_t>>(0);

  Instant begun_at, admitted_at, sealed_at, written_at;
  int64_t begun_unix_us = 0;
  Instant admission_deadline, commit_deadline;
  double stall_seconds = 0;      // The largest that any rank reported.
  int slowest_rank = -1;         // The rank that sealed last.
  bool remembered = false;       // Its end is in the history, and the observer was told.
  bool warned_of_ranks = false;  // The log has said which ranks save something else.
  WaitsFor waits_for = WaitsFor::kNothing;
  std::string waits_for_words;  // `waits_for` with the details, for error messages.
  // Set some time after the end; then the parts are gone and only this is left of them.
  std::unique_ptr<v1::Checkpoint> summary;

  absl::Status error;  // Why the save fails.
  std::vector<Waiter> waiters;
  MemberPart node;

  // Whether the memory is promised to other nodes, so that it may be used for nothing else.
  bool IsPromised() const { return node.promised && !node.released; }
  std::vector<int> RanksHere() const {
    if (!node.ranks.empty()) return node.ranks;
    std::vector<int> all(static_cast<size_t>(world_size));
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
  // Whether it is a rank of this node.
  bool IsHere(int rank) const {
    return node.ranks.empty() || std::binary_search(node.ranks.begin(), node.ranks.end(), rank);
  }
  SavePhase phase() const { return life.phase(); }
  v1::Level level() const { return life.level(); }
  bool sealed() const { return level() >= v1::SEALED && level() <= v1::COMMITTED; }
  bool ended() const { return phase() == SavePhase::kEnded; }
  void WaitFor(WaitsFor what, std::string words) {
    waits_for = what;
    waits_for_words = std::move(words);
  }
  bool Contributes(int rank) const { return contributors.empty() || contributors.contains(rank); }
  // Ranks that have not sealed their part.
  std::vector<int> UnsealedRanks() const {
    std::vector<int> ranks;
    for (int rank = 0; rank < world_size; ++rank) {
      const Part* part = FindPart(rank);
      if (part == nullptr || !part->sealed) ranks.push_back(rank);
    }
    return ranks;
  }
  // Finds or makes the part of a rank. Parts are made on demand, so that a save costs only what its ranks
  // have sent.
  Part& PartOf(int rank) {
    Part& part = parts[rank];
    part.rank = rank;
    return part;
  }
  const Part* FindPart(int rank) const {
    const auto found = parts.find(rank);
    return found == parts.end() ? nullptr : &found->second;
  }
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_RUN_SAVE_H_
