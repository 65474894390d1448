#include "daemon/memory/segment_pool.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "daemon/memory/populator.h"
#include "daemon/memory/segment_memory.h"
#include "daemon/memory/segment_pool_impl.h"

namespace ckptd {
namespace {

constexpr int64_t kMinSegmentBytes = 2 << 20;
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

// Halves the segment size, down to 2 MiB, until the budget holds at least four segments.
SegmentPoolOptions SegmentPool::Impl::Normalized(SegmentPoolOptions options) {
  while (options.segment_bytes > kMinSegmentBytes &&
         options.bytes / options.segment_bytes < SegmentPool::kLeastSegments) {
    options.segment_bytes /= 2;
  }
  options.segment_bytes = std::max(options.segment_bytes, kMinSegmentBytes);
  return options;
}

// ---- sessions

void SegmentPool::Impl::SessionEnded(SessionId session) {
  std::vector<DrawDone> cancelled =
      EndDraws([session](const PendingDraw& draw) { return draw.session == session; });
  for (auto& [id, reservation] : reservations_) {
    auto claim = reservation.claims.find(session);
    if (claim == reservation.claims.end()) continue;
    ConvertToFresh(session, claim->second.idle);
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
  EnforceResidentBudget();
  Pump();
  NotifyRoom();
  for (DrawDone& done : cancelled) done(absl::CancelledError("the session has ended"));
}

std::vector<SegmentId> SegmentPool::Impl::TakeRetired(SessionId session) {
  auto found = sessions_.find(session);
  return found == sessions_.end() ? std::vector<SegmentId>() : std::exchange(found->second.retired, {});
}

// ---- from one daemon to the next

// Takes the segments of an earlier daemon into the accounting. A used one that cannot be mapped is lost, with
// a warning.
void SegmentPool::Impl::AddInherited(PoolSuccession succession) {
  for (KeptSegment& kept : succession.unused) {
    last_segment_ = std::max(last_segment_, kept.id);
    populator_->Free(kept.id, SegmentMemory::Unmapped(std::move(kept.fd), kept.size));
  }
  for (KeptSegment& kept : succession.used) {
    last_segment_ = std::max(last_segment_, kept.id);
    absl::StatusOr<SegmentMemory> memory = SegmentMemory::MapInherited(std::move(kept.fd), kept.size);
    if (!memory.ok()) {
      warn_(absl::StrCat("cannot map a sealed segment of an earlier daemon, so its checkpoint is lost: ",
                         std::string(memory.status().message())));
      continue;
    }
    ++pages_[static_cast<int>(memory->pages())];
    Segment segment{std::move(*memory)};
    segment.kept = true;
    segment.orphan = true;  // It belongs to no session of this daemon.
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
  return absl::NotFoundError(
      "a segment of the inherited checkpoint is not in the pool, or belongs to another one");
}

// ---- usage

// Memory has come back: the pool follows a lowered budget, and schedules on_room_ once, however much room has come back before it runs.
void SegmentPool::Impl::NotifyRoom() {
  ApproachBudget();
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
  const int used = drawn_ + claimed_fresh_ + claimed_idle_;
  usage.total_bytes = std::max(budget_, used) * options_.segment_bytes;
  usage.used_bytes = used * options_.segment_bytes;
  usage.lent_bytes = (lent_ - drawn_ - resident_ - claimed_idle_) * options_.segment_bytes;
  usage.resident_bytes = resident_ * options_.segment_bytes;
  usage.ready_bytes = Ready() * options_.segment_bytes;
  const auto most = std::max_element(pages_.begin(), pages_.end());
  if (*most > 0) usage.pages = PageKindName(static_cast<PageKind>(most - pages_.begin()));
  return usage;
}

std::map<SessionId, int64_t> SegmentPool::Impl::LentBytes() const {
  std::map<SessionId, int64_t> bytes;
  for (const auto& [id, segment] : segments_) {
    if (segment.session != 0 && !segment.orphan)
      bytes[segment.session] += segment.weight * options_.segment_bytes;
  }
  return bytes;
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

void SegmentPool::SetBudget(const SegmentPoolBudget& budget) { impl_->SetBudget(budget); }
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
std::map<SessionId, int64_t> SegmentPool::LentBytes() const { return impl_->LentBytes(); }
void SegmentPool::FreeUnused() { impl_->FreeUnused(); }
uint64_t SegmentPool::uses() const { return impl_->uses(); }
int SegmentPool::Count(ReservationId reservation) const { return impl_->Count(reservation); }
SegmentDirectory& SegmentPool::directory() { return impl_->directory(); }

}  // namespace ckptd
