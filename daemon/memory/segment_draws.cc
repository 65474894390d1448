// Draws: how claimed segments reach a session, and the populator that makes the ones that are missing.

#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "daemon/memory/segment_pool_impl.h"

namespace ckptd {

namespace {

// Most segments that the populator is asked for at once: one to work on, and one so that it need not wait for
// the engine. No more: when memory runs out, all of these attempts fail before the pool knows.
constexpr int kMaxPopulating = 2;

}  // namespace

void SegmentPool::Impl::Draw(ReservationId id, SessionId reserved_for, SessionId session, int count,
                             DrawDone done) {
  auto found = reservations_.find(id);
  if (found == reservations_.end()) return done(absl::NotFoundError(absl::StrCat("no reservation ", id)));
  Claim& claim = found->second.claims[reserved_for];
  if (count < 0 || count > claim.count()) {
    return done(absl::InvalidArgumentError(absl::StrCat("cannot draw ", count, " segments: ", claim.count(),
                                                        " are reserved for session ", reserved_for)));
  }
  PendingDraw draw{id, reserved_for, session, Claim{}, attempts_, std::move(done)};
  if (session == reserved_for) {
    draw.claim.idle = std::min(count, claim.idle);
    claim.idle -= draw.claim.idle;
  } else if (const int other = count - claim.fresh; other > 0) {
    // The claim is on idle segments of another session than the one that draws. A segment never changes its
    // session, so these claims become fresh ones.
    ConvertToFresh(reserved_for, other);
    claim.idle -= other;
    claim.fresh += other;
  }
  draw.claim.fresh = count - draw.claim.idle;
  claim.fresh -= draw.claim.fresh;
  // Unclaimed idle segments of the session replace fresh claims: they need no populating.
  if (auto owner = sessions_.find(session); owner != sessions_.end()) {
    const int swapped = std::min(draw.claim.fresh, owner->second.unclaimed());
    owner->second.claimed += swapped;
    claimed_idle_ += swapped;
    claimed_fresh_ -= swapped;
    draw.claim.idle += swapped;
    draw.claim.fresh -= swapped;
  }
  if (draw.claim.fresh == 0) {
    std::vector<SegmentRef> lent = Lend(draw);
    Populate();  // TakeIdle may have freed the resident segments of a copy.
    return draw.done(std::move(lent));
  }
  draws_.push_back(std::move(draw));
  Pump();
}

// Takes `count` idle segments of a session, to be written: first those without a copy, then those of the
// oldest copy, so that the newest copy lasts longest.
std::vector<SegmentId> SegmentPool::Impl::TakeIdle(SessionId session, int count) {
  std::vector<std::pair<uint64_t, SegmentId>> idle;
  if (count == 0) return {};
  for (SegmentId id : sessions_[session].idle) {
    const ReservationId copy = segments_.at(id).copy;
    idle.emplace_back(copy == 0 ? 0 : reservations_.at(copy).settled_at, id);
  }
  std::sort(idle.begin(), idle.end());
  std::vector<SegmentId> taken;
  for (int i = 0; i < count; ++i) {
    const SegmentId id = idle[i].second;
    sessions_[session].idle.erase(id);
    DropCopy(segments_.at(id).copy);
    taken.push_back(id);
  }
  return taken;
}

// Hands out the segments of a draw. Precondition: its claims are covered by idle and ready segments.
std::vector<SegmentRef> SegmentPool::Impl::Lend(const PendingDraw& draw) {
  Unclaim(draw.session, draw.claim);
  Reservation& reservation = reservations_.at(draw.reservation);
  const std::vector<SegmentId> idle = TakeIdle(draw.session, draw.claim.idle);
  std::vector<SegmentRef> refs;
  for (int i = 0; i < draw.claim.count(); ++i) {
    SegmentId id = 0;
    if (i < draw.claim.idle) {
      id = idle[i];
    } else {
      id = ready_.front();
      ready_.pop_front();
      ++lent_;
    }
    Segment& segment = segments_.at(id);
    segment.orphan = draw.session == 0;
    if (segment.session == 0 && draw.session != 0) {
      segment.session = draw.session;
      lent_segments_.Add(id, draw.session, segment.memory);
    }
    ++drawn_;
    reservation.drawn.push_back(id);
    refs.push_back({id, segment.memory.data(), segment.memory.size(), segment.kept});
  }
  return refs;
}

// Gives the claims of a draw that does not happen back to its reservation.
void SegmentPool::Impl::ReturnClaims(const PendingDraw& draw) {
  Claim& claim = reservations_.at(draw.reservation).claims[draw.reserved_for];
  claim.fresh += draw.claim.fresh;
  if (draw.session == draw.reserved_for) {
    claim.idle += draw.claim.idle;
  } else {
    ConvertToFresh(draw.session, draw.claim.idle);
    claim.fresh += draw.claim.idle;
  }
}

// Removes a queued draw and returns its callback, for the caller to run once the state is consistent again.
SegmentPool::Impl::DrawDone SegmentPool::Impl::EndDraw(std::deque<PendingDraw>::iterator draw) {
  PendingDraw ended = std::move(*draw);
  draws_.erase(draw);
  ReturnClaims(ended);
  return std::move(ended.done);
}

std::vector<SegmentPool::Impl::DrawDone> SegmentPool::Impl::EndDraws(
    const std::function<bool(const PendingDraw&)>& which) {
  std::vector<DrawDone> ended;
  for (auto draw = draws_.begin(); draw != draws_.end();) {
    if (!which(*draw)) {
      ++draw;
      continue;
    }
    ended.push_back(EndDraw(draw));
    draw = draws_.begin();
  }
  return ended;
}

// Answers the queued draws for which segments are ready, oldest first, then asks the populator for the rest.
void SegmentPool::Impl::Pump() {
  while (!draws_.empty() && draws_.front().claim.fresh <= Ready()) {
    PendingDraw draw = std::move(draws_.front());
    draws_.pop_front();
    draw.done(Lend(draw));
  }
  Populate();
}

// Asks the populator for what is wanted: the target ahead of demand, what draws wait for and, unless memory
// ran out, all fresh claims.
void SegmentPool::Impl::Populate() {
  int waited_for = 0;
  for (const PendingDraw& draw : draws_) waited_for += draw.claim.fresh;
  int wanted = std::max(ahead_ - lent_, waited_for);
  if (!out_of_memory_) wanted = std::max(wanted, claimed_fresh_);
  wanted = std::min(wanted, capacity_ - lent_);
  for (; Populating() < kMaxPopulating && Ready() + Populating() < wanted; ++attempts_) {
    populator_->Make(++last_segment_);
  }
}

void SegmentPool::Impl::OnPopulated(MadeSegment made) {
  ++answers_;
  if (!made.memory.ok()) return OnPopulateFailed(made.memory.status());
  out_of_memory_ = false;
  if (store_ != nullptr && !made.kept.ok() && !std::exchange(not_kept_reported_, true)) {
    warn_(absl::StrCat(
        "the service manager does not keep segments, so sealed saves are lost if this daemon is killed: ",
        std::string(made.kept.message())));
  }
  if (made.memory->pages() == PageKind::kPlain && options_.pages != PagePolicy::kPlain && !plain_reported_) {
    plain_reported_ = true;
    warn_(PlainPagesAdvice(options_.bytes));
  }
  ++pages_[static_cast<int>(made.memory->pages())];
  ready_.push_back(made.id);
  segments_.emplace(made.id, Segment{std::move(*made.memory), made.kept.ok()});
  ahead_ = std::min(AheadTarget(), std::max(ahead_, lent_ + Ready()));
  Pump();
  ApproachBudget();
}

// The machine has less memory than the pool may use: fails the oldest draw that waited for this attempt, and
// stops populating ahead of demand.
void SegmentPool::Impl::OnPopulateFailed(const absl::Status& status) {
  ahead_ = std::min(ahead_, lent_ + Ready());
  if (!std::exchange(out_of_memory_, true)) {
    warn_(absl::StrCat(std::string(status.message()), "; the pool has ", SegmentsText(lent_ + Ready()),
                       " of the ", SegmentsText(budget_),
                       " allowed by pool.bytes, and tries again when a checkpoint needs more"));
  }
  DrawDone failed;
  if (!draws_.empty() && draws_.front().attempts_before < answers_) failed = EndDraw(draws_.begin());
  Pump();
  if (failed) failed(status);
}

}  // namespace ckptd
