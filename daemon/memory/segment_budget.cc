// How the pool follows a budget that has changed.

#include <algorithm>

#include "daemon/memory/segment_pool_impl.h"

namespace ckptd {

void SegmentPool::Impl::SetBudget(const SegmentPoolBudget& budget) {
  options_.bytes = budget.bytes;
  options_.populate_ahead_bytes = budget.populate_ahead_bytes;
  options_.resident_bytes = budget.resident_bytes;
  budget_ = std::max(kLeastSegments, static_cast<int>(budget.bytes / options_.segment_bytes));
  ahead_ = AheadTarget();
  out_of_memory_ = false;  // The machine may have more memory than at the last attempt.
  ApproachBudget();
  EnforceResidentBudget();
  Pump();
  NotifyRoom();
}

// Frees what is above a lowered budget and not in use, and gives up as much of the capacity. What saves and
// readers use stays until it comes back (NotifyRoom), and what the populator makes until it is there
// (OnPopulated).
void SegmentPool::Impl::ApproachBudget() {
  if (capacity_ > budget_) FreeForFreshClaims(capacity_ - budget_, /*spares_lent=*/false, {});
  const int most = std::max(budget_, lent_ + claimed_fresh_);
  while (!ready_.empty() && lent_ + Ready() + Populating() > most) {
    const SegmentId last = ready_.back();
    ready_.pop_back();
    Destroy(last);
  }
  capacity_ = std::max({budget_, lent_ + claimed_fresh_, lent_ + Ready() + Populating()});
}

}  // namespace ckptd
