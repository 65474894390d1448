// The daemon's memory for checkpoints: segments, each one memfd, size-locked (F_SEAL_SHRINK | F_SEAL_GROW |
// F_SEAL_SEAL), mapped here, populated before it is lent.
//
// A segment is lent to one session and never to another: when that session ends, or its idle segments are
// reclaimed, the memory is punched out, the memfd closed, and a new one is made and populated in its place.
// Idle segments of a session are lent to it again first: those that hold no copy of a checkpoint, then those
// of the oldest copy, lowest id first.
//
// The segments of a checkpoint that is committed stay as they are, a copy of it, until somebody needs their
// memory: its sessions when they save again, and, once these have ended, whoever finds nothing else.
//
// Used on the engine's thread only. Populating (0.5 to 1.8 GB/s) happens on a thread of the pool's own, which
// hands results back through `post`.
#ifndef CKPTD_DAEMON_MEMORY_SEGMENT_POOL_H_
#define CKPTD_DAEMON_MEMORY_SEGMENT_POOL_H_

#include <cstddef>
#include <cstdint>
#include <functional>
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
  int64_t resident_bytes = 0;        // What copies may have whose sessions have ended; <= bytes.
  PagePolicy pages = PagePolicy::kAuto;
};

// A lent segment as the engine sees it: its memory in this process.
struct SegmentRef {
  SegmentId id = 0;
  std::byte* data = nullptr;
  int64_t size = 0;
  bool kept = false;  // The next daemon finds it, too.
};

// A segment of an earlier daemon. Of a locked size, a multiple of 2 MiB.
struct KeptSegment {
  SegmentId id = 0;
  UniqueFd fd;
  int64_t size = 0;
};

// What a segment is called in a DescriptorStore, and back.
std::string SegmentName(SegmentId id);
std::optional<SegmentId> SegmentOfName(const std::string& name);

// How a pool outlives its daemon.
struct PoolSuccession {
  DescriptorStore* store = nullptr;  // Gets every segment before it is lent. Null: none. Outlives the pool.
  std::vector<KeptSegment> used;     // Counted before anything is populated, until Inherit and Release.
  std::vector<KeptSegment> unused;   // Freed before anything is populated.
};

// What one rank of a checkpoint needs.
struct SegmentDemand {
  SessionId session = 0;  // 0: the rank has not come yet; taken from what is lent to nobody.
  int count = 0;          // Segments.
};

// Room for all ranks of one checkpoint; see SegmentPool::Reserve. An opaque number.
using ReservationId = int64_t;

struct PoolUsage {
  int64_t total_bytes = 0;
  int64_t used_bytes = 0;      // Reserved or drawn for checkpoints, or read.
  int64_t lent_bytes = 0;      // Lent and idle.
  int64_t ready_bytes = 0;     // Populated, lent to nobody.
  int64_t resident_bytes = 0;  // Copies of checkpoints whose sessions have ended, and that nobody reads now.
  std::string pages;           // "hugetlb", "transparent" or "plain": what most of the pool got.
};

enum class SegmentAccess { kWrite, kRead };

// For the hand-off: called on the thread of the hand-off server, so thread-safe.
class SegmentDirectory {
 public:
  virtual ~SegmentDirectory() = default;
  struct Descriptor {
    int fd = -1;  // Of its own, owned by the caller; for reading alone where that was asked for.
    int64_t size = 0;
    bool huge = false;
  };
  // NOT_FOUND, reason UNKNOWN_SEGMENT, when `id` is not lent to `session`, or (for reading) not of a copy
  // that it holds.
  virtual absl::StatusOr<Descriptor> Find(SessionId session, SegmentId id, SegmentAccess access) = 0;
};

// populator.h: who makes the memory. It is given the size of a segment and whom to tell.
class Populator;
struct MadeSegment;
using MakePopulator =
    std::function<std::unique_ptr<Populator>(int64_t segment_bytes, std::function<void(MadeSegment)> made)>;

class SegmentPool {
 public:
  using Post =
      std::function<void(absl::AnyInvocable<void()>)>;  // Runs it on the engine's thread; thread-safe.
  // Starts populating ahead, on a thread of the pool's own unless `make_populator` says otherwise. Never
  // fails for want of huge pages: `warn` hears of it, once, and of memory that the machine has not got.
  // Called on the engine's thread. The pool is destroyed there, too, or when that thread has ended.
  static std::unique_ptr<SegmentPool> Start(SegmentPoolOptions options, Post post,
                                            std::function<void(std::string)> warn,
                                            PoolSuccession succession = {},
                                            MakePopulator make_populator = nullptr);
  ~SegmentPool();

  int64_t segment_bytes() const;
  int capacity() const;                  // Segments.
  int SegmentsFor(int64_t bytes) const;  // Rounded up; 0 for 0.
  int64_t resident_limit_bytes() const;  // What copies may have whose sessions have ended.

  // Called, through `post`, whenever room has come back (a release, a session's end): somebody may retry
  // Reserve.
  void OnRoom(std::function<void()> callback);

  // All of it or nothing, at once. Takes idle segments of the named sessions first, then what is lent to
  // nobody, then reclaims idle segments of sessions that are not named, last what the named ones have too
  // many of. RESOURCE_EXHAUSTED: reason POOL_TOO_SMALL when it could never fit, else POOL_EXHAUSTED, with how
  // much was asked for and how much there is.
  // spares_lent: for one that is not to cost a session its warm memory: reclaims nothing of theirs, only
  // copies.
  absl::StatusOr<ReservationId> Reserve(const std::vector<SegmentDemand>& demands, bool spares_lent = false);
  // More for a reservation that exists; the same rules.
  absl::Status Grow(ReservationId reservation, const SegmentDemand& demand);
  // Gives back `count` reserved segments that were not drawn (a rank declared less than expected).
  void Shrink(ReservationId reservation, SessionId reserved_for, int count);
  // Hands `count` populated segments of the reservation to `session`; `done` runs on the engine's thread,
  // perhaps at once. `reserved_for` is the session the demand named (0 when it was unknown then). Never for a
  // session that has ended; `session` 0: nobody but the daemon writes there. RESOURCE_EXHAUSTED, reason
  // POOL_EXHAUSTED, when the machine has not got the memory that the budget promised; the claim stays with
  // the reservation, so that it may be drawn again. CANCELLED when Release or SessionEnded came first.
  void Draw(ReservationId reservation, SessionId reserved_for, SessionId session, int count,
            absl::AnyInvocable<void(absl::StatusOr<std::vector<SegmentRef>>)> done);
  // What an earlier daemon's checkpoint lies in, as a reservation that has drawn it; nobody else can have it,
  // and with Release it is destroyed. NOT_FOUND when one of them is not there or is taken: then the others
  // are destroyed.
  struct Inherited {
    ReservationId reservation = 0;
    std::vector<SegmentRef> segments;  // As asked.
  };
  absl::StatusOr<Inherited> Inherit(const std::vector<SegmentId>& ids);
  // The session may still write this segment of a save that has ended (its part was never sealed): it is
  // destroyed when it is released, and retired, so that a late write meets nobody's bytes.
  void Revoke(SegmentId segment);
  // Segments stop belonging to the checkpoint: back to their session when it lives, else destroyed. Only when
  // no I/O refers to them any more. (Draws that have not answered yet are answered CANCELLED.)
  void Release(ReservationId reservation);
  // Release of a checkpoint that is committed: what was drawn is a copy of it now, which the reservation
  // names until it is gone. It goes when one of its segments is needed, with Release, or, when its sessions
  // have ended and copies have more than their budget, the longest unused first.
  void Settle(ReservationId reservation);
  // Keeps a copy: nobody gets its memory until as many Unholds. `reader` may have its descriptors, for
  // reading; 0: nobody does. False when it is gone, or about to be.
  bool Hold(ReservationId copy, SessionId reader);
  void Unhold(ReservationId copy, SessionId reader);
  bool HasCopy(ReservationId copy) const;
  // A reader of a copy that is held maps its memory, and nobody sees when that ends: from now on the memory
  // is never written, punched out or kept for the next daemon; given up, it lasts until the last mapping has
  // gone. `done` hears, perhaps at once, whether that can be promised.
  void Retire(ReservationId copy, absl::AnyInvocable<void(bool)> done);
  // Its idle segments are destroyed now, unless they hold a copy; the others when they are released.
  void SessionEnded(SessionId session);
  // How many segments a reservation or a copy has: those that are drawn and those that it may draw. 0: it is
  // gone.
  int Count(ReservationId reservation) const;
  // Ids of this session's segments that were reclaimed since the last call: the client should unmap them.
  std::vector<SegmentId> TakeRetired(SessionId session);

  PoolUsage usage() const;
  SegmentDirectory& directory();

 private:
  SegmentPool();
  class Impl;
  std::shared_ptr<Impl>
      impl_;  // Shared with nobody for long: what the pool's thread posts looks whether it is still there.
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_MEMORY_SEGMENT_POOL_H_
