// The daemon's memory for checkpoints. It consists of segments: each is one memfd of a locked size
// (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), mapped into this process and populated before it is lent.
//
// A segment is lent to one session and never to another. When that session ends, or the pool reclaims the
// session's idle segments, the pool punches the memory out, closes the memfd, and populates a new one in its
// place. A session gets its own idle segments back first: those that hold no copy of a checkpoint, then those
// of the oldest copy, lowest id first.
//
// The segments of a committed checkpoint stay as they are, as a resident copy, until their memory is needed:
// by their sessions for the next save and, once these have ended, by any save that finds no other memory.
//
// Used on the engine's thread only, except for directory(). Populating (0.5 to 1.8 GB/s) happens on a thread
// of the pool's own, which posts its results to the engine's thread.
#ifndef CKPTD_DAEMON_MEMORY_SEGMENT_POOL_H_
#define CKPTD_DAEMON_MEMORY_SEGMENT_POOL_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "daemon/memory/descriptor_store.h"
#include "storage/base/unique_fd.h"

namespace ckptd {

using SessionId = int64_t;  // >= 1; 0: no session yet.
using SegmentId = int64_t;  // >= 1.

enum class PagePolicy { kAuto, kTransparent, kPlain };

struct SegmentPoolOptions {
  int64_t bytes = 0;                 // Budget; rounded down to whole segments, at least 4 of them.
  int64_t segment_bytes = 0;         // Power of two >= 2 MiB.
  int64_t populate_ahead_bytes = 0;  // <= bytes.
  int64_t resident_bytes = 0;        // Budget of copies whose sessions have ended; <= bytes.
  PagePolicy pages = PagePolicy::kAuto;
};

// What may change while the pool is in use, as in the options.
struct SegmentPoolBudget {
  int64_t bytes = 0;
  int64_t populate_ahead_bytes = 0;
  int64_t resident_bytes = 0;
};

// A lent segment as the engine sees it: its memory in this process.
struct SegmentRef {
  SegmentId id = 0;
  std::byte* data = nullptr;
  int64_t size = 0;
  bool kept = false;  // In the descriptor store: the next daemon finds it, too.
};

// A segment of an earlier daemon. Its size is locked and a multiple of 2 MiB.
struct KeptSegment {
  SegmentId id = 0;
  UniqueFd fd;
  int64_t size = 0;
};

// The name of a segment in a DescriptorStore, and the segment of a name (nullopt: not the name of a segment).
std::string SegmentName(SegmentId id);
std::optional<SegmentId> SegmentOfName(const std::string& name);

// What a pool takes over from an earlier daemon, and how it leaves segments to the next one.
struct PoolSuccession {
  DescriptorStore* store =
      nullptr;                    // Gets every segment before it is lent. Null: none. Must outlive the pool.
  std::vector<KeptSegment> used;  // Counted against the budget from the start, until Inherit and Release.
  std::vector<KeptSegment> unused;  // Freed before anything is populated.
};

// The memory that one rank of a checkpoint needs.
struct SegmentDemand {
  SessionId session = 0;  // 0: the rank is not known yet; taken from segments that are lent to nobody.
  int count = 0;          // Segments.
};

// Names the room for all ranks of one checkpoint; see SegmentPool::Reserve. Opaque, >= 1.
using ReservationId = int64_t;

struct PoolUsage {
  int64_t total_bytes = 0;     // The budget, or what is used of a larger one before.
  int64_t used_bytes = 0;      // Reserved or drawn for checkpoints, or held by readers.
  int64_t lent_bytes = 0;      // Lent and idle.
  int64_t ready_bytes = 0;     // Populated, lent to nobody.
  int64_t resident_bytes = 0;  // Copies whose sessions have ended and that no reader holds.
  std::string pages;           // "hugetlb", "transparent" or "plain": the kind of most segments.
};

enum class SegmentAccess { kWrite, kRead };

// Finds descriptors for the hand-off server. Thread-safe: called on that server's thread.
class SegmentDirectory {
 public:
  virtual ~SegmentDirectory() = default;
  struct Descriptor {
    int fd = -1;  // A new descriptor that the caller owns; read-only if `access` was kRead.
    int64_t size = 0;
    bool huge = false;
  };
  // NOT_FOUND, reason UNKNOWN_SEGMENT, when `id` is not lent to `session` (kWrite), or is not part of a copy
  // that `session` holds (kRead).
  virtual absl::StatusOr<Descriptor> Find(SessionId session, SegmentId id, SegmentAccess access) = 0;
};

// Makes the thread that populates segments (populator.h). `made` gets each finished segment.
class Populator;
struct MadeSegment;
using MakePopulator =
    std::function<std::unique_ptr<Populator>(int64_t segment_bytes, std::function<void(MadeSegment)> made)>;

class SegmentPool {
 public:
  static constexpr int kLeastSegments = 4;
  using Post =
      std::function<void(absl::AnyInvocable<void()>)>;  // Runs it on the engine's thread; thread-safe.
  // Starts populating ahead of demand, on a thread of the pool's own unless `make_populator` gives another. A
  // lack of huge pages or of memory is no failure: `warn` gets one message. Call it on the engine's thread;
  // destroy the pool there, too, or after that thread has ended.
  static std::unique_ptr<SegmentPool> Start(SegmentPoolOptions options, Post post,
                                            std::function<void(std::string)> warn,
                                            PoolSuccession succession = {},
                                            MakePopulator make_populator = nullptr);
  ~SegmentPool();

  // Changes the budget, to at least 4 segments of the present size. A larger one counts at once. A smaller one
  // counts at once for new reservations; memory in use is freed as it comes back, idle memory and copies now.
  void SetBudget(const SegmentPoolBudget& budget);

  int64_t segment_bytes() const;
  int capacity() const;                  // Segments of the budget. More may be in use after it was lowered.
  int SegmentsFor(int64_t bytes) const;  // Rounded up; 0 for 0.
  int64_t resident_limit_bytes() const;  // Budget of copies whose sessions have ended.

  // `callback` runs, through `post`, whenever room has come back (a release, a session's end), so that the
  // caller can retry Reserve.
  void OnRoom(std::function<void()> callback);

  // Reserves all demands or nothing, without waiting. Takes idle segments of the named sessions first, then
  // segments that are lent to nobody, then reclaims idle segments of other sessions, and last those that the
  // named sessions do not need. `spares_lent`: reclaims no idle segment of any session (prefetch must not
  // cost trainers their populated memory), only copies whose sessions have ended. RESOURCE_EXHAUSTED: reason
  // POOL_TOO_SMALL when the demands can never fit, else POOL_EXHAUSTED; the message says how much was asked
  // for and how much is free.
  absl::StatusOr<ReservationId> Reserve(const std::vector<SegmentDemand>& demands, bool spares_lent = false);
  // Adds a demand to a reservation, by the same rules.
  absl::Status Grow(ReservationId reservation, const SegmentDemand& demand);
  // Gives back `count` reserved segments that were not drawn, because a rank declared less than was reserved
  // for it.
  void Shrink(ReservationId reservation, SessionId reserved_for, int count);
  // Hands `count` populated segments of the reservation to `session`. `done` runs on the engine's thread,
  // perhaps before Draw returns. `reserved_for` is the session that the demand named (0: unknown then).
  // `session` must not have ended; 0 means that only the daemon writes the segments. RESOURCE_EXHAUSTED,
  // reason POOL_EXHAUSTED, when the machine lacks memory that the budget promised; the claim stays with the
  // reservation, so the caller may draw again. CANCELLED when Release or SessionEnded came first.
  void Draw(ReservationId reservation, SessionId reserved_for, SessionId session, int count,
            absl::AnyInvocable<void(absl::StatusOr<std::vector<SegmentRef>>)> done);
  // Turns the segments of an earlier daemon's checkpoint into a reservation that has drawn them. Release
  // destroys them. NOT_FOUND when one of `ids` is missing or was inherited before; then the others are
  // destroyed.
  struct Inherited {
    ReservationId reservation = 0;
    std::vector<SegmentRef> segments;  // In the order of `ids`.
  };
  absl::StatusOr<Inherited> Inherit(const std::vector<SegmentId>& ids);
  // Retires this segment of a save whose part was never sealed: its session may still write it, so it is
  // destroyed on release and never lent again. No-op if it was revoked before.
  void Revoke(SegmentId segment);
  // Ends the reservation: its segments go back to their session if it lives, else they are destroyed.
  // Precondition: no I/O refers to them any more. Draws that wait are answered CANCELLED. A copy that is held
  // goes with the last Unhold.
  void Release(ReservationId reservation);
  // Like Release, for a committed checkpoint: its drawn segments become a resident copy, which the
  // reservation's id names from now on. The pool drops the copy when one of its segments is needed, on
  // Release, or, once its sessions have ended, when copies exceed resident_bytes (the longest unused first).
  void Settle(ReservationId reservation);
  // Holds a copy in memory until Unhold was called as often. `reader` may fetch its descriptors, read-only;
  // 0: no session may. False when the copy is gone, or a save has claimed its segments.
  bool Hold(ReservationId copy, SessionId reader);
  void Unhold(ReservationId copy, SessionId reader);
  bool HasCopy(ReservationId copy) const;
  // Retires the memory of a held copy for a reader that maps it. The daemon cannot see when the mapping ends,
  // so from now on the memory is never written, punched out or left to the next daemon; after the pool has
  // closed it, the kernel frees it with the last mapping. `done(false)`, perhaps before Retire returns: this
  // cannot be promised, because a session may still write the copy or the descriptor store did not forget it.
  void Retire(ReservationId copy, absl::AnyInvocable<void(bool)> done);
  // Destroys the session's idle segments that hold no copy now, and the others when they are released.
  void SessionEnded(SessionId session);
  // Frees all memory that no save and no reader uses: idle segments of sessions that live, and copies. Their
  // next save populates new ones, and restores read the disk. What is populated ahead stays.
  void FreeUnused();
  // Grows with each reservation and each hold: while it stays the same, nothing has asked for memory.
  uint64_t uses() const;
  // How many segments a reservation or a copy has, drawn and still to draw. 0: it is gone.
  int Count(ReservationId reservation) const;
  // Ids of this session's segments that were reclaimed or revoked since the last call: the client should
  // unmap them.
  std::vector<SegmentId> TakeRetired(SessionId session);

  PoolUsage usage() const;
  // The bytes of the segments that each session has, in use or idle.
  std::map<SessionId, int64_t> LentBytes() const;
  SegmentDirectory& directory();

 private:
  SegmentPool();
  class Impl;
  std::shared_ptr<Impl> impl_;  // Shared because posted callbacks hold a weak_ptr: the pool may be gone.
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_MEMORY_SEGMENT_POOL_H_
