#include "daemon/memory/segment_pool.h"

#include <algorithm>
#include <array>
#include <deque>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "daemon/memory/lent_segments.h"
#include "daemon/memory/populator.h"
#include "daemon/memory/segment_memory.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

constexpr int64_t kMinSegmentBytes = 2 << 20;
constexpr int kMinSegments = 4;
// How many segments the populator is asked for at once: one to work on and one so that it need not wait for
// the engine. Not more: when memory runs out, so many attempts fail before that is known here.
constexpr int kPopulating = 2;

SegmentPoolOptions Sane(SegmentPoolOptions options) {
  while (options.segment_bytes > kMinSegmentBytes && options.bytes / options.segment_bytes < kMinSegments) {
    options.segment_bytes /= 2;
  }
  options.segment_bytes = std::max(options.segment_bytes, kMinSegmentBytes);
  return options;
}

constexpr char kSegmentName[] = "ckptd-segment-";

}  // namespace

std::string SegmentName(SegmentId id) { return absl::StrCat(kSegmentName, id); }

std::optional<SegmentId> SegmentOfName(const std::string& name) {
  if (!name.starts_with(kSegmentName)) return std::nullopt;
  SegmentId id = 0;
  if (!absl::SimpleAtoi(name.substr(sizeof(kSegmentName) - 1), &id) || id < 1 || SegmentName(id) != name) {
    return std::nullopt;
  }
  return id;
}

// How the budget of `capacity_` segments is accounted for. Each is one of
//   resident    holds a copy whose session has ended; counted as lent, and may be claimed like an idle one,
//   lent        belongs to a session: drawn for a checkpoint, or idle; idle ones may be claimed by a
//   reservation, ready       populated, lent to nobody, populating  asked of the populator, nothing yet.
// A reservation holds claims: on idle segments of one session (`idle`), or on what is lent to nobody or not
// there yet (`fresh`). At all times: lent + ready + populating <= capacity, and lent + all fresh claims <=
// capacity. So a Draw never has to wait for anything but the populator.
class SegmentPool::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(SegmentPoolOptions options, Post post, std::function<void(std::string)> warn, DescriptorStore* store)
      : options_(Sane(options)),
        capacity_(static_cast<int>(options_.bytes / options_.segment_bytes)),
        post_(std::move(post)),
        warn_(std::move(warn)),
        store_(store),
        ahead_(AheadTarget()) {}

  void Start(const MakePopulator& make_populator, PoolSuccession succession) {
    populator_ =
        make_populator(options_.segment_bytes, [post = post_, weak = weak_from_this()](MadeSegment made) {
          post([weak, made = std::move(made)]() mutable {
            if (auto self = weak.lock()) self->Populated(std::move(made));
          });
        });
    TakeOver(std::move(succession));
    Pump();
  }

  int64_t segment_bytes() const { return options_.segment_bytes; }
  int capacity() const { return capacity_; }
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
    return found != reservations_.end() && !found->second.doomed;
  }
  void SessionEnded(SessionId session);
  std::vector<SegmentId> TakeRetired(SessionId session);
  int Count(ReservationId id) const;
  PoolUsage usage() const;
  SegmentDirectory& directory() { return lent_segments_; }

 private:
  struct Segment {
    SegmentMemory memory;
    bool kept = false;        // The store has it.
    SessionId session = 0;    // 0: ready.
    bool orphan = false;      // Its session has ended or may still write it: freed when it is released.
    uint64_t idle_since = 0;  // Counts releases; orders reclaiming.
    int weight = 1;           // In segments of this pool's size.
    bool inherited = false;   // Of an earlier daemon, and Inherit has not come for it.
    ReservationId copy = 0;   // Of which settled checkpoint it holds bytes; 0: of none.
    bool resident() const { return copy != 0 && orphan; }
  };
  struct Session {
    std::set<SegmentId> idle;
    int claimed = 0;  // Of the idle ones, by reservations.
    std::vector<SegmentId> retired;
    int unclaimed() const { return static_cast<int>(idle.size()) - claimed; }
  };
  struct Claim {
    int idle = 0;
    int fresh = 0;
    int count() const { return idle + fresh; }
  };
  struct Reservation {
    std::map<SessionId, Claim> claims;  // By the session that the demand named; 0 has fresh ones only.
    std::vector<SegmentId> drawn;
    bool settled = false;  // `drawn` are idle or resident, and a copy.
    uint64_t settled_at = 0;
    int holds = 0;
    bool doomed = false;  // Released while it was held: goes when it is not.
  };
  // Waits for the populator. Its claims have been taken out of the reservation; idle ones are of `session`.
  struct PendingDraw {
    ReservationId reservation;
    SessionId reserved_for;
    SessionId session;
    Claim claim;
    int64_t attempts_before;  // How often the populator had been asked when it came: what fails of that is
                              // not for it.
    DrawDone done;
  };

  int AheadTarget() const {
    return std::min(capacity_, static_cast<int>(options_.populate_ahead_bytes / options_.segment_bytes));
  }
  int Populating() const { return static_cast<int>(attempts_ - answers_); }
  int Ready() const { return static_cast<int>(ready_.size()); }
  std::string Size(int64_t segments) const {
    return absl::StrCat(segments, " segments (", (segments * options_.segment_bytes) >> 20, " MiB)");
  }

  absl::Status CheckRoom(int64_t wanted, int64_t had, bool spares_lent) const;
  void ClaimAll(const std::vector<SegmentDemand>& demands, bool spares_lent, Reservation& reservation);
  void MakeFresh(int count, bool spares_lent, const std::set<SessionId>& named);
  void Unclaim(SessionId session, const Claim& claim);
  void ToFresh(SessionId session, int count);
  void Reclaim(SessionId session, SegmentId id);
  void Free(SegmentId id);
  DrawDone EndDraw(std::deque<PendingDraw>::iterator draw);
  std::vector<DrawDone> EndDraws(const std::function<bool(const PendingDraw&)>& which);
  bool FreesMemory(const Reservation& copy) const;
  void DropCopy(ReservationId id);
  void KeepToBudget();
  std::vector<SegmentId> TakeIdle(SessionId session, int count);
  std::vector<SegmentRef> Lend(const PendingDraw& draw);
  void ReturnClaims(const PendingDraw& draw);
  void TakeOver(PoolSuccession succession);
  void Populated(MadeSegment made);
  void NotPopulated(const absl::Status& status);
  void Pump();
  void Populate();
  void NotifyRoom();

  const SegmentPoolOptions options_;
  const int capacity_;
  const Post post_;
  const std::function<void(std::string)> warn_;
  DescriptorStore* const store_;
  std::function<void()> on_room_;
  bool room_posted_ = false;

  std::map<SegmentId, Segment> segments_;  // All that are populated.
  std::deque<SegmentId> ready_;
  std::map<SessionId, Session> sessions_;
  std::map<ReservationId, Reservation> reservations_;
  std::deque<PendingDraw> draws_;  // In the order they came.
  SegmentId last_segment_ = 0;
  ReservationId last_reservation_ = 0;
  uint64_t releases_ = 0;
  int lent_ = 0;
  int drawn_ = 0;
  int resident_ = 0;  // Of those that are lent.
  int claimed_fresh_ = 0;
  int claimed_idle_ = 0;
  int64_t attempts_ = 0;  // Asked of the populator.
  int64_t answers_ = 0;   // Of these, answered; in order.

  int ahead_;  // How many segments to have without being asked; less than wished after a failure.
  bool out_of_memory_ = false;  // The last attempt failed: populate only what a Draw waits for.
  bool plain_reported_ = false;
  bool not_kept_reported_ = false;
  std::array<int, 3> pages_{};  // Segments by PageKind.

  LentSegments lent_segments_;
  std::unique_ptr<Populator> populator_;  // Last: ends before the rest goes.
};

// ---- reserving

absl::Status SegmentPool::Impl::CheckRoom(int64_t wanted, int64_t had, bool spares_lent) const {
  if (wanted + had > capacity_) {
    return MakeError(
        absl::StatusCode::kResourceExhausted, "POOL_TOO_SMALL",
        absl::StrCat("the checkpoint needs ", Size(wanted + had), " of memory, but the whole pool has ",
                     Size(capacity_), "; make pool.bytes larger or save less on this node"));
  }
  const int64_t idle = lent_ - drawn_ - resident_ - claimed_idle_;
  const int64_t free = capacity_ - drawn_ - claimed_fresh_ - claimed_idle_ - (spares_lent ? idle : 0);
  if (wanted > free) {
    return MakeError(
        absl::StatusCode::kResourceExhausted, "POOL_EXHAUSTED",
        absl::StrCat("the checkpoint needs ", Size(wanted), " of memory now, but of ", Size(capacity_),
                     " only ", Size(free), " are not in use by other checkpoints"));
  }
  return absl::OkStatus();
}

// There is room for all of it (CheckRoom): every copy and, unless it spares them, every idle segment that
// nobody has claimed may go.
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
  MakeFresh(fresh, spares_lent, named);
  claimed_fresh_ += fresh;
}

// Takes idle segments from their sessions, and drops copies whose sessions have ended, until `count` are lent
// to nobody and not claimed: first of sessions that this is not for, then what is more than the others need;
// the longest unused first.
void SegmentPool::Impl::MakeFresh(int count, bool spares_lent, const std::set<SessionId>& named) {
  const auto enough = [&] { return capacity_ - lent_ - claimed_fresh_ >= count; };
  if (enough()) return;
  struct Candidate {
    bool named;
    uint64_t since;
    SegmentId minus_id;  // The highest ids go first: the lowest are lent again first.
    SessionId session;
    ReservationId copy;  // Not 0: this copy, and no segment.
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

// ---- taking back

// `count` claims on idle segments of `session` become claims on fresh ones; the segments go.
void SegmentPool::Impl::ToFresh(SessionId session, int count) {
  if (count == 0) return;
  Unclaim(session, Claim{count, 0});
  claimed_fresh_ += count;
  for (; count > 0; --count) Reclaim(session, *sessions_.at(session).idle.rbegin());
}

// Takes an idle segment from a session that lives.
void SegmentPool::Impl::Reclaim(SessionId session, SegmentId id) {
  Session& owner = sessions_.at(session);
  owner.idle.erase(id);
  owner.retired.push_back(id);
  DropCopy(segments_.at(id).copy);
  Free(id);
}

void SegmentPool::Impl::Free(SegmentId id) {
  lent_segments_.Remove(id);
  auto found = segments_.find(id);
  --pages_[static_cast<int>(found->second.memory.pages())];
  lent_ -= found->second.weight;
  populator_->Free(id, std::move(found->second.memory));
  segments_.erase(found);
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
    found->second.doomed = true;
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

// ---- copies

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
  KeepToBudget();
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
    // An admitted save is about to draw them.
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
  const bool doomed = found->second.doomed;
  Settle(id);
  if (doomed) Release(id);
}

void SegmentPool::Impl::Retire(ReservationId id, absl::AnyInvocable<void(bool)> done) {
  auto found = reservations_.find(id);
  if (found == reservations_.end() || found->second.holds == 0) return done(false);
  const bool written = std::any_of(found->second.drawn.begin(), found->second.drawn.end(),
                                   [this](SegmentId segment) { return !segments_.at(segment).orphan; });
  if (written) return done(false);  // Its session may write it.
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

// A copy of whose segments some are nobody's any more.
bool SegmentPool::Impl::FreesMemory(const Reservation& copy) const {
  return copy.settled && std::any_of(copy.drawn.begin(), copy.drawn.end(),
                                     [this](SegmentId id) { return segments_.at(id).resident(); });
}

// A part of it is of no use: all of it goes. What of it is idle stays its session's.
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

void SegmentPool::Impl::KeepToBudget() {
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

// ---- sessions

void SegmentPool::Impl::SessionEnded(SessionId session) {
  std::vector<DrawDone> cancelled =
      EndDraws([session](const PendingDraw& draw) { return draw.session == session; });
  for (auto& [id, reservation] : reservations_) {
    auto claim = reservation.claims.find(session);
    if (claim == reservation.claims.end()) continue;
    ToFresh(session, claim->second.idle);
    claim->second.fresh += claim->second.idle;
    claim->second.idle = 0;
  }
  lent_segments_.RemoveSession(session);
  for (auto& [id, segment] : segments_) segment.orphan = segment.orphan || segment.session == session;
  if (auto found = sessions_.find(session); found != sessions_.end()) {
    for (SegmentId id : found->second.idle) {
      if (const Segment& segment = segments_.at(id); segment.resident()) {
        resident_ += segment.weight;
      } else {
        Free(id);
      }
    }
    sessions_.erase(found);
  }
  KeepToBudget();
  Pump();
  NotifyRoom();
  for (DrawDone& done : cancelled) done(absl::CancelledError("the session has ended"));
}

std::vector<SegmentId> SegmentPool::Impl::TakeRetired(SessionId session) {
  auto found = sessions_.find(session);
  return found == sessions_.end() ? std::vector<SegmentId>() : std::exchange(found->second.retired, {});
}

// ---- drawing

void SegmentPool::Impl::Draw(ReservationId id, SessionId reserved_for, SessionId session, int count,
                             DrawDone done) {
  auto found = reservations_.find(id);
  if (found == reservations_.end()) return done(absl::NotFoundError(absl::StrCat("no reservation ", id)));
  Claim& claim = found->second.claims[reserved_for];
  if (count < 0 || count > claim.count()) {
    return done(absl::InvalidArgumentError(absl::StrCat("a draw of ", count, " segments of ", claim.count(),
                                                        " reserved for session ", reserved_for)));
  }
  PendingDraw draw{id, reserved_for, session, Claim{}, attempts_, std::move(done)};
  if (session == reserved_for) {
    draw.claim.idle = std::min(count, claim.idle);
    claim.idle -= draw.claim.idle;
  } else if (const int other = count - claim.fresh; other > 0) {
    // Reserved as idle segments of a session that somebody else draws for: no segment changes session.
    ToFresh(reserved_for, other);
    claim.idle -= other;
    claim.fresh += other;
  }
  draw.claim.fresh = count - draw.claim.idle;
  claim.fresh -= draw.claim.fresh;
  // What the session has at hand and nobody has claimed saves populating: its claim takes the place of the
  // fresh one.
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
    Populate();  // In place of what a copy had beside them.
    return draw.done(std::move(lent));
  }
  draws_.push_back(std::move(draw));
  Pump();
}

// Idle segments of a session, to be written: the newest copy is kept longest.
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

// Everything that the draw needs is there.
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

// ---- from one daemon to the next

void SegmentPool::Impl::TakeOver(PoolSuccession succession) {
  for (KeptSegment& kept : succession.unused) {
    last_segment_ = std::max(last_segment_, kept.id);
    populator_->Free(kept.id, SegmentMemory::Discarded(std::move(kept.fd), kept.size));
  }
  for (KeptSegment& kept : succession.used) {
    last_segment_ = std::max(last_segment_, kept.id);
    absl::StatusOr<SegmentMemory> memory = SegmentMemory::Adopt(std::move(kept.fd), kept.size);
    if (!memory.ok()) {
      warn_(absl::StrCat("a sealed segment of an earlier daemon is lost: ",
                         std::string(memory.status().message())));
      continue;
    }
    ++pages_[static_cast<int>(memory->pages())];
    Segment segment{std::move(*memory)};
    segment.kept = true;
    segment.orphan = true;  // No session of this daemon has it.
    segment.inherited = true;
    segment.weight = static_cast<int>((kept.size + options_.segment_bytes - 1) / options_.segment_bytes);
    lent_ += segment.weight;
    segments_.emplace(kept.id, std::move(segment));
  }
}

absl::StatusOr<SegmentPool::Inherited> SegmentPool::Impl::Inherit(const std::vector<SegmentId>& ids) {
  Inherited inherited;
  Reservation reservation;
  bool complete = true;
  for (SegmentId id : ids) {
    auto found = segments_.find(id);
    if (found == segments_.end() || !std::exchange(found->second.inherited, false)) {
      complete = false;
      continue;
    }
    Segment& segment = found->second;
    drawn_ += segment.weight;
    reservation.drawn.push_back(id);
    inherited.segments.push_back({id, segment.memory.data(), segment.memory.size(), segment.kept});
  }
  inherited.reservation = ++last_reservation_;
  reservations_.emplace(inherited.reservation, std::move(reservation));
  if (complete) return inherited;
  Release(inherited.reservation);
  return absl::NotFoundError("a segment is not there");
}

// The draw does not happen: what it had claimed belongs to the reservation again.
void SegmentPool::Impl::ReturnClaims(const PendingDraw& draw) {
  Claim& claim = reservations_.at(draw.reservation).claims[draw.reserved_for];
  claim.fresh += draw.claim.fresh;
  if (draw.session == draw.reserved_for) {
    claim.idle += draw.claim.idle;
  } else {
    ToFresh(draw.session, draw.claim.idle);
    claim.fresh += draw.claim.idle;
  }
}

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

// ---- populating

// Answers the draws that can be answered, then asks for what is missing.
void SegmentPool::Impl::Pump() {
  while (!draws_.empty() && draws_.front().claim.fresh <= Ready()) {
    PendingDraw draw = std::move(draws_.front());
    draws_.pop_front();
    draw.done(Lend(draw));
  }
  Populate();
}

void SegmentPool::Impl::Populate() {
  int waited_for = 0;
  for (const PendingDraw& draw : draws_) waited_for += draw.claim.fresh;
  int wanted = std::max(ahead_ - lent_, waited_for);
  if (!out_of_memory_) wanted = std::max(wanted, claimed_fresh_);
  wanted = std::min(wanted, capacity_ - lent_);
  for (; Populating() < kPopulating && Ready() + Populating() < wanted; ++attempts_) {
    populator_->Make(++last_segment_);
  }
}

void SegmentPool::Impl::Populated(MadeSegment made) {
  ++answers_;
  if (!made.memory.ok()) return NotPopulated(made.memory.status());
  out_of_memory_ = false;
  if (store_ != nullptr && !made.kept.ok() && !std::exchange(not_kept_reported_, true)) {
    warn_(absl::StrCat(
        "the service manager does not keep segments, so a killed daemon takes along what is sealed: ",
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
}

// The machine has less memory than the pool may have. Who waits for it hears of it; nothing more is populated
// ahead.
void SegmentPool::Impl::NotPopulated(const absl::Status& status) {
  ahead_ = std::min(ahead_, lent_ + Ready());
  if (!std::exchange(out_of_memory_, true)) {
    warn_(absl::StrCat(std::string(status.message()), "; the pool has ", Size(lent_ + Ready()), " of the ",
                       Size(capacity_), " that it may have, and tries again when a checkpoint needs more"));
  }
  DrawDone failed;
  if (!draws_.empty() && draws_.front().attempts_before < answers_) failed = EndDraw(draws_.begin());
  Pump();
  if (failed) failed(status);
}

void SegmentPool::Impl::NotifyRoom() {
  if (!on_room_ || std::exchange(room_posted_, true)) return;
  post_([weak = weak_from_this()] {
    auto self = weak.lock();
    if (!self) return;
    self->room_posted_ = false;
    self->on_room_();
  });
}

int SegmentPool::Impl::Count(ReservationId id) const {
  auto found = reservations_.find(id);
  if (found == reservations_.end()) return 0;
  int count = 0;
  for (SegmentId segment : found->second.drawn) count += segments_.at(segment).weight;
  for (const auto& [session, claim] : found->second.claims) count += claim.count();
  for (const PendingDraw& draw : draws_) count += draw.reservation == id ? draw.claim.count() : 0;
  return count;
}

PoolUsage SegmentPool::Impl::usage() const {
  PoolUsage usage;
  usage.total_bytes = capacity_ * options_.segment_bytes;
  usage.used_bytes = (drawn_ + claimed_fresh_ + claimed_idle_) * options_.segment_bytes;
  usage.lent_bytes = (lent_ - drawn_ - resident_ - claimed_idle_) * options_.segment_bytes;
  usage.resident_bytes = resident_ * options_.segment_bytes;
  usage.ready_bytes = Ready() * options_.segment_bytes;
  const auto most = std::max_element(pages_.begin(), pages_.end());
  if (*most > 0) usage.pages = PageKindName(static_cast<PageKind>(most - pages_.begin()));
  return usage;
}

// ---- SegmentPool

SegmentPool::SegmentPool() = default;
SegmentPool::~SegmentPool() = default;

std::unique_ptr<SegmentPool> SegmentPool::Start(SegmentPoolOptions options, Post post,
                                                std::function<void(std::string)> warn,
                                                PoolSuccession succession, MakePopulator make_populator) {
  if (!make_populator) {
    make_populator = [pages = options.pages, store = succession.store](int64_t segment_bytes,
                                                                       Populator::Made made) {
      return StartPopulator(segment_bytes, pages, store, std::move(made));
    };
  }
  std::unique_ptr<SegmentPool> pool(new SegmentPool);
  pool->impl_ = std::make_shared<Impl>(options, std::move(post), std::move(warn), succession.store);
  pool->impl_->Start(make_populator, std::move(succession));
  return pool;
}

int64_t SegmentPool::segment_bytes() const { return impl_->segment_bytes(); }
int SegmentPool::capacity() const { return impl_->capacity(); }
int64_t SegmentPool::resident_limit_bytes() const { return impl_->resident_limit_bytes(); }
int SegmentPool::SegmentsFor(int64_t bytes) const {
  const int64_t segments = bytes / segment_bytes() + (bytes % segment_bytes() != 0);
  return static_cast<int>(std::min<int64_t>(segments, std::numeric_limits<int>::max()));
}
void SegmentPool::OnRoom(std::function<void()> callback) { impl_->OnRoom(std::move(callback)); }
absl::StatusOr<ReservationId> SegmentPool::Reserve(const std::vector<SegmentDemand>& demands,
                                                   bool spares_lent) {
  return impl_->Reserve(demands, spares_lent);
}
absl::Status SegmentPool::Grow(ReservationId reservation, const SegmentDemand& demand) {
  return impl_->Grow(reservation, demand);
}
void SegmentPool::Shrink(ReservationId reservation, SessionId reserved_for, int count) {
  impl_->Shrink(reservation, reserved_for, count);
}
void SegmentPool::Draw(ReservationId reservation, SessionId reserved_for, SessionId session, int count,
                       absl::AnyInvocable<void(absl::StatusOr<std::vector<SegmentRef>>)> done) {
  impl_->Draw(reservation, reserved_for, session, count, std::move(done));
}
absl::StatusOr<SegmentPool::Inherited> SegmentPool::Inherit(const std::vector<SegmentId>& ids) {
  return impl_->Inherit(ids);
}
void SegmentPool::Revoke(SegmentId segment) { impl_->Revoke(segment); }
void SegmentPool::Release(ReservationId reservation) { impl_->Release(reservation); }
void SegmentPool::Settle(ReservationId reservation) { impl_->Settle(reservation); }
bool SegmentPool::Hold(ReservationId copy, SessionId reader) { return impl_->Hold(copy, reader); }
void SegmentPool::Unhold(ReservationId copy, SessionId reader) { impl_->Unhold(copy, reader); }
bool SegmentPool::HasCopy(ReservationId copy) const { return impl_->HasCopy(copy); }
void SegmentPool::Retire(ReservationId copy, absl::AnyInvocable<void(bool)> done) {
  impl_->Retire(copy, std::move(done));
}
void SegmentPool::SessionEnded(SessionId session) { impl_->SessionEnded(session); }
std::vector<SegmentId> SegmentPool::TakeRetired(SessionId session) { return impl_->TakeRetired(session); }
PoolUsage SegmentPool::usage() const { return impl_->usage(); }
int SegmentPool::Count(ReservationId reservation) const { return impl_->Count(reservation); }
SegmentDirectory& SegmentPool::directory() { return impl_->directory(); }

}  // namespace ckptd
