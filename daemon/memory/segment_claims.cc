// Reservations of the segment pool: what they claim, how they grow and shrink, and how their memory comes
// back.

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/memory/segment_pool_impl.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd {

absl::Status SegmentPool::Impl::CheckRoom(int64_t wanted, int64_t had, bool spares_lent) const {
  if (wanted == 0) return absl::OkStatus();
  if (wanted + had > budget_) {
    return MakeError(absl::StatusCode::kResourceExhausted, "POOL_TOO_SMALL",
                     absl::StrCat("the checkpoint needs ", SegmentsText(wanted + had),
                                  " of memory, but the whole pool has ", SegmentsText(budget_),
                                  "; make pool.bytes larger or save less on this node"));
  }
  const int64_t idle = lent_ - drawn_ - resident_ - claimed_idle_;
  const int64_t free =
      std::max<int64_t>(0, budget_ - drawn_ - claimed_fresh_ - claimed_idle_ - (spares_lent ? idle : 0));
  if (wanted > free) {
    return MakeError(absl::StatusCode::kResourceExhausted, "POOL_EXHAUSTED",
                     absl::StrCat("the checkpoint needs ", SegmentsText(wanted), " of memory now, but of ",
                                  SegmentsText(budget_), " only ", SegmentsText(free),
                                  " are not in use by other checkpoints"));
  }
  return absl::OkStatus();
}

// Claims what `demands` need. CheckRoom has found room, so this cannot fail: it may drop every copy and,
// unless `spares_lent`, take every unclaimed idle segment.
void SegmentPool::Impl::ClaimAll(const std::vector<SegmentDemand>& demands, bool spares_lent,
                                 Reservation& reservation) {
  std::set<SessionId> named;
  int fresh = 0;
  for (const SegmentDemand& demand : demands) {
    Claim claim;
    auto session = sessions_.find(demand.session);
    if (session != sessions_.end()) {
      claim.idle = std::min(demand.count, session->second.unclaimed());
      session->second.claimed += claim.idle;
    }
    claim.fresh = demand.count - claim.idle;
    claimed_idle_ += claim.idle;
    fresh += claim.fresh;
    named.insert(demand.session);
    reservation.claims[demand.session].idle += claim.idle;
    reservation.claims[demand.session].fresh += claim.fresh;
  }
  FreeForFreshClaims(fresh, spares_lent, named);
  claimed_fresh_ += fresh;
}

// Reclaims idle segments and drops copies whose sessions have ended until `count` more segments can be
// claimed as fresh. Order: sessions that are not in `named` and copies first, then the unclaimed rest of the
// named sessions; within each group the longest unused first.
void SegmentPool::Impl::FreeForFreshClaims(int count, bool spares_lent, const std::set<SessionId>& named) {
  const auto enough = [&] { return capacity_ - lent_ - claimed_fresh_ >= count; };
  if (enough()) return;
  struct Candidate {
    bool named;
    uint64_t since;
    SegmentId minus_id;  // Negated, so that the highest id goes first: the lowest ids are lent again first.
    SessionId session;
    ReservationId copy;  // Not 0: the candidate is this copy, not a segment.
    auto operator<=>(const Candidate&) const = default;
  };
  std::vector<Candidate> candidates;
  for (const auto& [id, session] : sessions_) {
    int unclaimed = spares_lent ? 0 : session.unclaimed();
    for (auto it = session.idle.rbegin(); unclaimed > 0; ++it, --unclaimed)
      candidates.push_back({named.contains(id), segments_.at(*it).idle_since, -*it, id, 0});
  }
  for (const auto& [id, reservation] : reservations_) {
    if (reservation.settled) candidates.push_back({false, reservation.settled_at, 0, 0, id});
  }
  std::sort(candidates.begin(), candidates.end());
  for (const Candidate& candidate : candidates) {
    if (enough()) break;
    if (candidate.copy == 0) {
      Reclaim(candidate.session, -candidate.minus_id);
    } else if (auto copy = reservations_.find(candidate.copy);
               copy != reservations_.end() && FreesMemory(copy->second)) {
      DropCopy(candidate.copy);
    }
  }
}

absl::StatusOr<ReservationId> SegmentPool::Impl::Reserve(const std::vector<SegmentDemand>& demands,
                                                         bool spares_lent) {
  int64_t wanted = 0;
  for (const SegmentDemand& demand : demands) wanted += demand.count;
  CKPTD_RETURN_IF_ERROR(CheckRoom(wanted, 0, spares_lent));
  const ReservationId id = ++last_reservation_;
  ++uses_;
  ClaimAll(demands, spares_lent, reservations_[id]);
  Pump();
  return id;
}

absl::Status SegmentPool::Impl::Grow(ReservationId id, const SegmentDemand& demand) {
  auto found = reservations_.find(id);
  if (found == reservations_.end()) return absl::NotFoundError(absl::StrCat("no reservation ", id));
  int64_t had = static_cast<int64_t>(found->second.drawn.size());
  for (const auto& [session, claim] : found->second.claims) had += claim.count();
  for (const PendingDraw& draw : draws_) had += draw.reservation == id ? draw.claim.count() : 0;
  CKPTD_RETURN_IF_ERROR(CheckRoom(demand.count, had, /*spares_lent=*/false));
  ClaimAll({demand}, /*spares_lent=*/false, found->second);
  Pump();
  return absl::OkStatus();
}

void SegmentPool::Impl::Shrink(ReservationId id, SessionId reserved_for, int count) {
  auto found = reservations_.find(id);
  if (found == reservations_.end()) return;
  Claim& claim = found->second.claims[reserved_for];
  Claim given;
  given.fresh = std::min(count, claim.fresh);
  given.idle = std::min(count - given.fresh, claim.idle);
  claim.fresh -= given.fresh;
  claim.idle -= given.idle;
  Unclaim(reserved_for, given);
  NotifyRoom();
}

void SegmentPool::Impl::Unclaim(SessionId session, const Claim& claim) {
  claimed_fresh_ -= claim.fresh;
  claimed_idle_ -= claim.idle;
  if (claim.idle > 0) sessions_.at(session).claimed -= claim.idle;
}

// Turns `count` claims on idle segments of `session` into fresh claims, and frees as many idle segments.
void SegmentPool::Impl::ConvertToFresh(SessionId session, int count) {
  if (count == 0) return;
  Unclaim(session, Claim{count, 0});
  claimed_fresh_ += count;
  for (; count > 0; --count) Reclaim(session, *sessions_.at(session).idle.rbegin());
}

// Takes an idle segment from a session that lives, and frees it. The client is told to unmap it
// (TakeRetired).
void SegmentPool::Impl::Reclaim(SessionId session, SegmentId id) {
  Session& owner = sessions_.at(session);
  owner.idle.erase(id);
  owner.retired.push_back(id);
  DropCopy(segments_.at(id).copy);
  Free(id);
}

void SegmentPool::Impl::Free(SegmentId id) {
  lent_segments_.Remove(id);
  lent_ -= segments_.at(id).weight;
  Destroy(id);
}

void SegmentPool::Impl::Destroy(SegmentId id) {
  auto found = segments_.find(id);
  --pages_[static_cast<int>(found->second.memory.pages())];
  populator_->Free(id, std::move(found->second.memory));
  segments_.erase(found);
}

void SegmentPool::Impl::FreeUnused() {
  std::vector<ReservationId> copies;
  for (const auto& [id, reservation] : reservations_) {
    if (reservation.settled) copies.push_back(id);
  }
  for (ReservationId copy : copies) DropCopy(copy);
  for (auto& [id, session] : sessions_) {
    while (session.unclaimed() > 0) Reclaim(id, *session.idle.rbegin());
  }
  Pump();
  NotifyRoom();
}

void SegmentPool::Impl::Revoke(SegmentId id) {
  auto segment = segments_.find(id);
  if (segment == segments_.end() || segment->second.orphan) return;
  segment->second.orphan = true;
  sessions_[segment->second.session].retired.push_back(id);
}

void SegmentPool::Impl::Release(ReservationId id) {
  auto found = reservations_.find(id);
  if (found == reservations_.end()) return;
  if (found->second.settled) {
    DropCopy(id);
    Pump();
    return NotifyRoom();
  }
  if (found->second.holds > 0) {
    found->second.release_when_unheld = true;
    return;
  }
  std::vector<DrawDone> cancelled =
      EndDraws([id](const PendingDraw& draw) { return draw.reservation == id; });
  Reservation reservation = std::move(found->second);
  reservations_.erase(found);
  for (const auto& [session, claim] : reservation.claims) Unclaim(session, claim);
  ++releases_;
  for (SegmentId segment_id : reservation.drawn) {
    Segment& segment = segments_.at(segment_id);
    drawn_ -= segment.weight;
    if (segment.orphan) {
      Free(segment_id);
    } else {
      segment.idle_since = releases_;
      sessions_[segment.session].idle.insert(segment_id);
    }
  }
  Pump();
  NotifyRoom();
  for (DrawDone& done : cancelled) done(absl::CancelledError("the checkpoint has ended"));
}

}  // namespace ckptd
