// The state of SegmentPool and the declarations of its steps. Private to this folder. The steps are in
//
//   segment_budget.cc   how the pool follows a budget that has changed
//   segment_pool.cc     start, inheritance, sessions, usage, and the public class
//   segment_claims.cc   reservations: what they claim, how they grow and shrink, how memory comes back
//   segment_copies.cc   resident copies: settle, hold, map, drop
//   segment_draws.cc    draws and the populator that they wait for
//
// All of it runs on the engine's thread.
#ifndef CKPTD_DAEMON_MEMORY_SEGMENT_POOL_IMPL_H_
#define CKPTD_DAEMON_MEMORY_SEGMENT_POOL_IMPL_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "daemon/memory/descriptor_store.h"
#include "daemon/memory/lent_segments.h"
#include "daemon/memory/populator.h"
#include "daemon/memory/segment_memory.h"
#include "daemon/memory/segment_pool.h"

namespace ckptd {

// clang-format off
//
// How the pool's `capacity_` segments are accounted for: those of the budget, and more while a larger budget of
// before is still in use. Each segment is in one of these states:
//
//   state        held by                                                         counted in
//   -----------  --------------------------------------------------------------  ---------------------------
//   drawn        a reservation; its session writes it, or nobody does any more   lent_, drawn_
//   idle         a session that lives; may hold bytes of a copy; claimable       lent_
//   resident     a copy whose session has ended; claimable                       lent_, resident_
//   ready        nobody: populated and not lent                                  Ready()
//   populating   the populator: asked for and not answered                       Populating()
//
// A reservation holds claims: `idle` ones on idle segments of one session (claimed_idle_), `fresh` ones on
// segments that are ready or do not exist yet (claimed_fresh_). Invariants, at all times:
//
//   lent_ + Ready() + Populating() <= capacity_
//   lent_ + claimed_fresh_         <= capacity_
//
// So a Draw never waits for anything but the populator.
//
// clang-format on
class SegmentPool::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(SegmentPoolOptions options, Post post, std::function<void(std::string)> warn, DescriptorStore* store)
      : options_(Normalized(options)),
        budget_(static_cast<int>(options_.bytes / options_.segment_bytes)),
        capacity_(budget_),
        post_(std::move(post)),
        warn_(std::move(warn)),
        store_(store),
        ahead_(AheadTarget()) {}

  void Start(const MakePopulator& make_populator, PoolSuccession succession) {
    populator_ =
        make_populator(options_.segment_bytes, [post = post_, weak = weak_from_this()](MadeSegment made) {
          post([weak, made = std::move(made)]() mutable {
            if (auto self = weak.lock()) self->OnPopulated(std::move(made));
          });
        });
    AddInherited(std::move(succession));
    Pump();
  }

  int64_t segment_bytes() const { return options_.segment_bytes; }
  int capacity() const { return budget_; }
  void SetBudget(const SegmentPoolBudget& budget);
  int64_t resident_limit_bytes() const { return options_.resident_bytes; }
  void OnRoom(std::function<void()> callback) { on_room_ = std::move(callback); }

  absl::StatusOr<ReservationId> Reserve(const std::vector<SegmentDemand>& demands, bool spares_lent);
  absl::Status Grow(ReservationId id, const SegmentDemand& demand);
  void Shrink(ReservationId id, SessionId reserved_for, int count);
  using DrawDone = absl::AnyInvocable<void(absl::StatusOr<std::vector<SegmentRef>>)>;
  void Draw(ReservationId id, SessionId reserved_for, SessionId session, int count, DrawDone done);
  absl::StatusOr<Inherited> Inherit(const std::vector<SegmentId>& ids);
  void Revoke(SegmentId id);
  void Release(ReservationId id);
  void Settle(ReservationId id);
  bool Hold(ReservationId id, SessionId reader);
  void Unhold(ReservationId id, SessionId reader);
  void Retire(ReservationId id, absl::AnyInvocable<void(bool)> done);
  bool HasCopy(ReservationId id) const {
    auto found = reservations_.find(id);
    return found != reservations_.end() && !found->second.release_when_unheld;
  }
  void SessionEnded(SessionId session);
  std::vector<SegmentId> TakeRetired(SessionId session);
  void FreeUnused();
  uint64_t uses() const { return uses_; }
  int Count(ReservationId id) const;
  PoolUsage usage() const;
  std::map<SessionId, int64_t> LentBytes() const;
  SegmentDirectory& directory() { return lent_segments_; }

 private:
  static SegmentPoolOptions Normalized(SegmentPoolOptions options);

  struct Segment {
    SegmentMemory memory;
    bool kept = false;      // The descriptor store holds it for the next daemon.
    SessionId session = 0;  // 0: lent to no session.
    bool orphan =
        false;  // No session gets it back: its session has ended, or it was revoked. Freed on release.
    uint64_t idle_since =
        0;                   // Value of `releases_` when it became idle; the longest idle is reclaimed first.
    int weight = 1;          // Size in segments of this pool; above 1 only for larger inherited ones.
    bool inherited = false;  // From an earlier daemon, and not yet claimed by Inherit.
    ReservationId copy = 0;  // The settled reservation whose bytes it holds; 0: none.
    bool resident() const { return copy != 0 && orphan; }
  };
  struct Session {
    std::set<SegmentId> idle;
    int claimed = 0;                 // How many of `idle` reservations have claimed.
    std::vector<SegmentId> retired;  // Reclaimed or revoked since the last TakeRetired.
    int unclaimed() const { return static_cast<int>(idle.size()) - claimed; }
  };
  struct Claim {
    int idle = 0;
    int fresh = 0;
    int count() const { return idle + fresh; }
  };
  struct Reservation {
    std::map<SessionId, Claim> claims;  // By the session that the demand named; 0 has fresh claims only.
    std::vector<SegmentId> drawn;
    bool settled = false;  // `drawn` is a resident copy: its segments are idle or resident.
    uint64_t settled_at = 0;
    int holds = 0;
    bool release_when_unheld = false;  // Release came while it was held.
  };
  // A Draw that waits for the populator. Its claims have left the reservation; the idle ones are on segments
  // of `session`.
  struct PendingDraw {
    ReservationId reservation;
    SessionId reserved_for;
    SessionId session;
    Claim claim;
    int64_t attempts_before;  // `attempts_` when it was queued: a failure of an earlier attempt is not its.
    DrawDone done;
  };

  int AheadTarget() const {
    return std::min(budget_, static_cast<int>(options_.populate_ahead_bytes / options_.segment_bytes));
  }
  int Populating() const { return static_cast<int>(attempts_ - answers_); }
  int Ready() const { return static_cast<int>(ready_.size()); }
  // For messages: "12 segments (768 MiB)".
  std::string SegmentsText(int64_t segments) const {
    return absl::StrCat(segments, " segments (", (segments * options_.segment_bytes) >> 20, " MiB)");
  }

  // segment_claims.cc
  absl::Status CheckRoom(int64_t wanted, int64_t had, bool spares_lent) const;
  void ClaimAll(const std::vector<SegmentDemand>& demands, bool spares_lent, Reservation& reservation);
  void FreeForFreshClaims(int count, bool spares_lent, const std::set<SessionId>& named);
  void Unclaim(SessionId session, const Claim& claim);
  void ConvertToFresh(SessionId session, int count);
  void Reclaim(SessionId session, SegmentId id);
  void Free(SegmentId id);     // A lent segment.
  void Destroy(SegmentId id);  // One that is in no list of the pool any more.

  // segment_budget.cc
  void ApproachBudget();

  // segment_copies.cc
  bool FreesMemory(const Reservation& copy) const;
  void DropCopy(ReservationId id);
  void EnforceResidentBudget();

  // segment_draws.cc
  std::vector<SegmentId> TakeIdle(SessionId session, int count);
  std::vector<SegmentRef> Lend(const PendingDraw& draw);
  void ReturnClaims(const PendingDraw& draw);
  DrawDone EndDraw(std::deque<PendingDraw>::iterator draw);
  std::vector<DrawDone> EndDraws(const std::function<bool(const PendingDraw&)>& which);
  void Pump();
  void Populate();
  void OnPopulated(MadeSegment made);
  void OnPopulateFailed(const absl::Status& status);

  // segment_pool.cc
  void AddInherited(PoolSuccession succession);
  void NotifyRoom();

  SegmentPoolOptions options_;
  int budget_;    // In segments. New reservations fit into it.
  int capacity_;  // >= budget_; above it only while that much is lent, claimed or populated.
  const Post post_;
  const std::function<void(std::string)> warn_;
  DescriptorStore* const store_;
  std::function<void()> on_room_;
  bool room_posted_ = false;

  std::map<SegmentId, Segment> segments_;  // Every populated segment, ready, lent or resident.
  std::deque<SegmentId> ready_;
  std::map<SessionId, Session> sessions_;
  std::map<ReservationId, Reservation> reservations_;
  std::deque<PendingDraw> draws_;  // Oldest first; answered in this order.
  SegmentId last_segment_ = 0;
  ReservationId last_reservation_ = 0;
  uint64_t releases_ = 0;
  uint64_t uses_ = 0;  // Calls of Reserve and Hold that succeeded.
  int lent_ = 0;
  int drawn_ = 0;
  int resident_ = 0;  // Included in `lent_`.
  int claimed_fresh_ = 0;
  int claimed_idle_ = 0;
  int64_t attempts_ = 0;  // Segments asked of the populator.
  int64_t answers_ = 0;   // How many of these it has answered; answers come in order.

  int ahead_;  // Target for lent + ready segments without any demand; lowered after a failure.
  bool out_of_memory_ = false;  // The last attempt failed: populate only what a queued Draw needs.
  bool plain_reported_ = false;
  bool not_kept_reported_ = false;
  std::array<int, 3> pages_{};  // Segments by PageKind.

  LentSegments lent_segments_;
  std::unique_ptr<Populator> populator_;  // Declared last: its thread ends before the state it reports to.
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_MEMORY_SEGMENT_POOL_IMPL_H_
