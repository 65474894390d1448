#include "daemon/engine/admission/memory_shares.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/engine/run/run.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"

namespace ckptd {

int64_t MaxMinShare(std::vector<int64_t> demands, int64_t available) {
  std::sort(demands.begin(), demands.end());
  int64_t left = available;
  for (size_t i = 0; i < demands.size(); ++i) {
    const int64_t equal = left / static_cast<int64_t>(demands.size() - i);
    if (demands[i] > equal) return equal;
    left -= demands[i];
  }
  return available;
}

MemoryShares::MemoryShares(const SegmentPool* pool, const SaveTable* saves, const ExpectedSizes* sizes,
                           int most_percent_per_user, HeldByUser held_by_readers)
    : pool_(pool),
      saves_(saves),
      sizes_(sizes),
      most_percent_per_user_(most_percent_per_user),
      held_by_readers_(std::move(held_by_readers)) {}

int64_t MemoryShares::MostPerUser() const {
  return std::max<int64_t>(1, int64_t{pool_->capacity()} * most_percent_per_user_ / 100);
}

int64_t MemoryShares::NeededSegments(const Save& save) const {
  int64_t need = 0;
  for (int rank = 0; rank < save.world_size; ++rank)
    need += pool_->SegmentsFor(sizes_->PartBytes(save, rank));
  return need;
}

// A user's demand is what its saves and readers hold and what its queued saves need.
MemoryUse MemoryShares::Use() const {
  MemoryUse use;
  use.held = held_by_readers_();
  std::map<uid_t, int64_t> demanded = use.held;
  for (const auto& [id, save] : saves_->all()) {
    int64_t count = 0;
    if (save->reservation != 0) {
      count = pool_->Count(save->reservation);
      use.held[save->run->uid] += count;
    } else if (save->phase() == SavePhase::kQueued) {
      count = NeededSegments(*save);
    }
    if (count > 0) demanded[save->run->uid] += count;
  }
  int64_t held_by_all = 0;
  for (const auto& [uid, count] : use.held) held_by_all += count;
  std::vector<int64_t> demands;
  for (const auto& [uid, count] : demanded) demands.push_back(count);
  use.users = static_cast<int>(demands.size());
  // Memory that no user is charged for belongs to saves of an earlier daemon.
  const int64_t used = pool_->usage().used_bytes / pool_->segment_bytes();
  const int64_t uncharged = std::max<int64_t>(0, used - held_by_all);
  use.share = MaxMinShare(std::move(demands), pool_->capacity() - uncharged);
  return use;
}

MemoryShares::Source MemoryShares::AwaitedSource(const Save& save, const MemoryUse& use) const {
  const int64_t need = NeededSegments(save), held = use.Held(save.run->uid);
  int64_t held_by_run = 0;
  for (const auto& [sequence, other] : save.run->saves) {
    if (other->reservation != 0) held_by_run += pool_->Count(other->reservation);
  }
  if (held_by_run + need > MostPerUser()) return Source::kOwnRun;
  return held + need > MostPerUser() ? Source::kOwnUser : Source::kAnyUser;
}

absl::Status MemoryShares::CheckUserLimit(const Save& save, const MemoryUse& use) const {
  const int64_t need = NeededSegments(save), held = use.Held(save.run->uid), most = MostPerUser();
  if (most >= pool_->capacity()) return absl::OkStatus();
  if (need > most) {
    return MakeError(
        absl::StatusCode::kResourceExhausted, reason::kPoolTooSmall,
        absl::StrCat("the checkpoint needs ", MiB(need), " MiB of memory, but one user may hold ", MiB(most),
                     " MiB; raise limits.max_pool_percent_per_user or pool.bytes, or "
                     "save less on this node"));
  }
  if (held + need > most) {
    return MakeError(
        absl::StatusCode::kResourceExhausted, reason::kPoolExhausted,
        absl::StrCat("the checkpoint needs ", MiB(need), " MiB of memory now, uid ", save.run->uid, " holds ",
                     MiB(held), " MiB, and may hold ", MiB(most), " (limits.max_pool_percent_per_user)"));
  }
  return absl::OkStatus();
}

absl::Status MemoryShares::CheckGrowth(const Save& save, int64_t segments) const {
  const MemoryUse use = Use();
  const uid_t uid = save.run->uid;
  const int64_t grown = use.Held(uid) + segments, most = MostPerUser();
  if (most < pool_->capacity() && grown > most) {
    return MakeError(absl::StatusCode::kResourceExhausted, reason::kPoolExhausted,
                     absl::StrCat("uid ", uid, " would hold ", MiB(grown), " MiB of memory, and may hold ",
                                  MiB(most), " (limits.max_pool_percent_per_user)"));
  }
  const bool others_wait = std::any_of(saves_->all().begin(), saves_->all().end(), [uid](const auto& entry) {
    const Save& other = *entry.second;
    return other.phase() == SavePhase::kQueued && other.run->uid != uid &&
           other.waits_for == WaitsFor::kMemory;
  });
  if (grown <= use.share || !others_wait) return absl::OkStatus();
  return MakeError(absl::StatusCode::kResourceExhausted, reason::kPoolExhausted,
                   absl::StrCat("uid ", uid, " would hold ", MiB(grown),
                                " MiB of memory while others wait for some; the share of each user is ",
                                MiB(use.share), " MiB"));
}

}  // namespace ckptd
