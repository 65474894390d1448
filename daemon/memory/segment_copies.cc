// Resident copies: what a committed checkpoint leaves in memory, who may hold and map it, and when it is
// dropped.

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "daemon/memory/segment_pool_impl.h"

namespace ckptd {

void SegmentPool::Impl::Settle(ReservationId id) {
  auto found = reservations_.find(id);
  if (found == reservations_.end() || found->second.settled) return;
  if (found->second.drawn.empty()) return Release(id);
  std::vector<DrawDone> cancelled =
      EndDraws([id](const PendingDraw& draw) { return draw.reservation == id; });
  Reservation& reservation = found->second;
  for (const auto& [session, claim] : reservation.claims) Unclaim(session, claim);
  reservation.claims.clear();
  reservation.settled = true;
  reservation.settled_at = ++releases_;
  for (SegmentId segment_id : reservation.drawn) {
    Segment& segment = segments_.at(segment_id);
    drawn_ -= segment.weight;
    segment.copy = id;
    segment.idle_since = releases_;
    if (segment.orphan) {
      resident_ += segment.weight;
    } else {
      sessions_[segment.session].idle.insert(segment_id);
    }
  }
  EnforceResidentBudget();
  Pump();
  NotifyRoom();
  for (DrawDone& done : cancelled) done(absl::CancelledError("the checkpoint has ended"));
}

bool SegmentPool::Impl::Hold(ReservationId id, SessionId reader) {
  if (!HasCopy(id)) return false;
  Reservation& reservation = reservations_.at(id);
  if (reservation.holds == 0) {
    if (!reservation.settled) return false;
    std::map<SessionId, int> idle;
    for (SegmentId segment_id : reservation.drawn) {
      const Segment& segment = segments_.at(segment_id);
      if (!segment.resident()) ++idle[segment.session];
    }
    // Refuse if an admitted save has claimed segments of this copy: it is about to draw them.
    for (const auto& [session, count] : idle) {
      if (sessions_.at(session).unclaimed() < count) return false;
    }
    for (SegmentId segment_id : reservation.drawn) {
      Segment& segment = segments_.at(segment_id);
      drawn_ += segment.weight;
      if (segment.resident()) {
        resident_ -= segment.weight;
      } else {
        sessions_.at(segment.session).idle.erase(segment_id);
      }
      segment.copy = 0;
    }
    reservation.settled = false;
  }
  ++reservation.holds;
  ++uses_;
  if (reader == 0) return true;
  for (SegmentId segment_id : reservation.drawn)
    lent_segments_.AddReader(segment_id, reader, segments_.at(segment_id).memory);
  return true;
}

void SegmentPool::Impl::Unhold(ReservationId id, SessionId reader) {
  auto found = reservations_.find(id);
  if (found == reservations_.end() || found->second.holds == 0) return;
  if (reader != 0) {
    for (SegmentId segment_id : found->second.drawn) lent_segments_.RemoveReader(segment_id, reader);
  }
  if (--found->second.holds > 0) return;
  const bool release_when_unheld = found->second.release_when_unheld;
  Settle(id);
  if (release_when_unheld) Release(id);
}

void SegmentPool::Impl::Retire(ReservationId id, absl::AnyInvocable<void(bool)> done) {
  auto found = reservations_.find(id);
  if (found == reservations_.end() || found->second.holds == 0) return done(false);
  const bool written = std::any_of(found->second.drawn.begin(), found->second.drawn.end(),
                                   [this](SegmentId segment) { return !segments_.at(segment).orphan; });
  if (written) return done(false);  // Its session may still write it.
  std::vector<SegmentId> kept;
  for (SegmentId segment_id : found->second.drawn) {
    Segment& segment = segments_.at(segment_id);
    segment.memory.Retire();
    if (segment.kept) kept.push_back(segment_id);
  }
  if (kept.empty()) return done(true);
  struct Asked {
    size_t left;
    bool forgotten = true;
    absl::AnyInvocable<void(bool)> done;
  };
  auto asked = std::make_shared<Asked>(Asked{kept.size(), true, std::move(done)});
  for (SegmentId segment_id : kept) {
    populator_->Forget(segment_id,
                       [post = post_, weak = weak_from_this(), asked, segment_id](absl::Status gone) {
                         post([weak, asked, segment_id, gone = std::move(gone)] {
                           auto self = weak.lock();
                           if (!self) return;
                           asked->forgotten &= gone.ok();
                           auto segment = self->segments_.find(segment_id);
                           if (gone.ok() && segment != self->segments_.end()) segment->second.kept = false;
                           if (--asked->left == 0) asked->done(asked->forgotten);
                         });
                       });
  }
}

// Whether dropping this copy frees memory: a session of at least one of its segments has ended.
bool SegmentPool::Impl::FreesMemory(const Reservation& copy) const {
  return copy.settled && std::any_of(copy.drawn.begin(), copy.drawn.end(),
                                     [this](SegmentId id) { return segments_.at(id).resident(); });
}

// Drops the copy as a whole, because a part of it is of no use. Frees its resident segments; its idle ones
// stay with their sessions. No-op if `id` is 0 or the copy is gone.
void SegmentPool::Impl::DropCopy(ReservationId id) {
  auto found = reservations_.find(id);
  if (id == 0 || found == reservations_.end()) return;
  const Reservation copy = std::move(found->second);
  reservations_.erase(found);
  for (SegmentId segment_id : copy.drawn) {
    Segment& segment = segments_.at(segment_id);
    const bool resident = segment.resident();
    segment.copy = 0;
    if (!resident) continue;
    resident_ -= segment.weight;
    Free(segment_id);
  }
}

// Drops copies whose sessions have ended, the longest unused first, until they fit into resident_bytes.
void SegmentPool::Impl::EnforceResidentBudget() {
  while (int64_t{resident_} * options_.segment_bytes > options_.resident_bytes) {
    ReservationId oldest = 0;
    for (const auto& [id, reservation] : reservations_) {
      if (FreesMemory(reservation) &&
          (oldest == 0 || reservation.settled_at < reservations_.at(oldest).settled_at))
        oldest = id;
    }
    DropCopy(oldest);
  }
}

}  // namespace ckptd
