// The room of one save: disk, then memory, taken from saves beyond their user's share if need be.
#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/engine/admission/admission_queue.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"

namespace ckptd {

// True: admitted. False: the save stays queued, or has ended.
bool AdmissionQueue::TryAdmit(Save* save, const MemoryUse& use) {
  if (!ReserveDisk(save)) return false;
  const absl::Status memory = ReserveMemoryWithin(save, use);
  if (memory.ok()) {
    Admit(save);
    return true;
  }
  save->disk_reserved = 0;
  if (ReasonOf(memory) != reason::kPoolExhausted) {
    hooks_.fail(save, memory);
    return false;
  }
  save->WaitFor(WaitsFor::kMemory, absl::StrCat("memory: ", std::string(memory.message())));
  if (save->busy == v1::SKIP) {
    Skip(save, save->waits_for_words);
  } else if (save->busy == v1::SUPERSEDE) {
    SupersedeOlder(save);
  }
  return false;
}

void AdmissionQueue::Admit(Save* save) {
  save->life.Promised();
  save->WaitFor(WaitsFor::kOtherNodes, "the other nodes to have room");
  hooks_.accepted(save);
}

void AdmissionQueue::Skip(Save* save, const std::string& why) {
  hooks_.fail(save, MakeError(absl::StatusCode::kAborted, reason::kSkipped, why, {{"tag", save->key.tag}}));
}

// Ends the oldest save of the run that is not sealed. Its memory comes back later, and wakes the queue.
void AdmissionQueue::SupersedeOlder(Save* save) {
  for (const auto& [sequence, older] : save->run->saves) {
    if (sequence >= save->sequence) break;
    const bool promised = older->phase() == SavePhase::kAccepted || older->phase() == SavePhase::kGivingUp;
    if (older->sealed() || promised || older->phase() == SavePhase::kFailing) continue;
    hooks_.fail(older.get(), MakeError(absl::StatusCode::kAborted, reason::kSuperseded,
                                       absl::StrCat("the younger save of ", save->key.tag, " took its place"),
                                       {{"tag", older->key.tag}}));
    return;
  }
}

// ---- disk

// True: reserved. False: the save waits, or has ended.
bool AdmissionQueue::ReserveDisk(Save* save) {
  std::string lack;
  const DiskRoom::Claim claim = disk_->Reserve(save, &lack);
  if (claim == DiskRoom::Claim::kReserved) return true;
  if (claim == DiskRoom::Claim::kNever) {
    hooks_.fail(save,
                MakeError(absl::StatusCode::kResourceExhausted, reason::kNoSpace,
                          absl::StrCat(lack, "; free some space or keep fewer checkpoints (num_kept_ckpts)"),
                          {{"tag", save->key.tag}}));
    return false;
  }
  save->WaitFor(WaitsFor::kDisk, lack);
  if (claim == DiskRoom::Claim::kAsking) return false;
  disk_->Poll(save);
  if (save->busy == v1::SKIP) Skip(save, lack);
  return false;
}

// ---- memory

// POOL_EXHAUSTED: not now. Any other error: never.
absl::Status AdmissionQueue::ReserveMemoryWithin(Save* save, const MemoryUse& use) {
  if (absl::Status limit = shares_->CheckUserLimit(*save, use); !limit.ok()) return limit;
  absl::Status memory = ReserveMemory(save);
  if (ReasonOf(memory) == reason::kPoolExhausted && TakeBackMemory(save, use)) {
    walk_again_ = true;  // The saves have changed.
    memory = ReserveMemory(save);
  }
  return memory;
}

absl::Status AdmissionQueue::ReserveMemory(Save* save) {
  std::vector<SegmentDemand> demands;
  // The sizes of all ranks are known, so every rank gets its memory now, also one that has not begun.
  for (int rank = 0; rank < save->world_size; ++rank) {
    Part& part = save->PartOf(rank);
    part.reserved = pool_->SegmentsFor(sizes_->PartBytes(*save, rank));
    part.reserved_for = part.session;
    if (!part.begun) {
      if (SessionId session = hooks_.session_of_rank(*save->run, save->key.attempt, rank); session != 0)
        part.reserved_for = session;
    }
    demands.push_back(SegmentDemand{part.reserved_for, part.reserved});
  }
  absl::StatusOr<ReservationId> reservation = pool_->Reserve(demands);
  if (!reservation.ok()) {
    for (auto& [rank, part] : save->parts) part.reserved = 0;
    return reservation.status();
  }
  save->reservation = *reservation;
  return absl::OkStatus();
}

// Segments that are free, or on their way back from saves that fail.
int64_t AdmissionQueue::RoomOnItsWay() const {
  const PoolUsage usage = pool_->usage();
  int64_t room = (usage.total_bytes - usage.used_bytes) / pool_->segment_bytes();
  for (const auto& [id, ending] : saves_->all()) {
    const bool fails = ending->phase() == SavePhase::kFailing || ending->phase() == SavePhase::kGivingUp;
    if (fails && ending->reservation != 0 && !ending->run->degraded)
      room += pool_->Count(ending->reservation);
  }
  return room;
}

// Ends saves of other users that hold more than their share, unsealed and for longer than the grace, if that
// makes room for `save`. The youngest goes first. No user loses more than what it has beyond the share, or
// beyond what the user of `save` would then have.
bool AdmissionQueue::TakeBackMemory(Save* save, const MemoryUse& use) {
  const uid_t uid = save->run->uid;
  const int64_t need = shares_->NeededSegments(*save);
  const int64_t least = std::max(use.share, use.Held(uid) + need);
  int64_t room = RoomOnItsWay();
  if (room >= need) return false;
  std::map<uid_t, int64_t> held = use.held;
  std::vector<Save*> over;
  std::optional<Instant> due;
  for (auto entry = saves_->all().rbegin(); entry != saves_->all().rend() && room < need; ++entry) {
    Save* other = entry->second;
    const bool open = other->phase() == SavePhase::kAdmitted && !other->sealed() && other->reservation != 0;
    if (!open || other->run->uid == uid || held[other->run->uid] <= least) continue;
    const Instant ends = other->admitted_at + over_share_grace_;
    if (clock_->Now() < ends) {
      due = std::min(due.value_or(ends), ends);
      continue;
    }
    const int64_t count = pool_->Count(other->reservation);
    held[other->run->uid] -= count;
    room += count;
    over.push_back(other);
  }
  if (room < need) {
    if (due) TryAgainAt(*due);
    return false;
  }
  EndBeyondShare(over, use);
  return true;
}

void AdmissionQueue::EndBeyondShare(const std::vector<Save*>& over, const MemoryUse& use) {
  const int64_t mib = pool_->segment_bytes() >> 20;
  for (Save* save : over) {
    const std::string ranks = JoinRanks(save->UnsealedRanks());
    hooks_.fail(
        save,
        MakeError(absl::StatusCode::kAborted, reason::kOverShare,
                  absl::StrCat("the saves of uid ", save->run->uid, " held ", use.Held(save->run->uid) * mib,
                               " MiB of memory, others waited for some of it, and the share of each "
                               "user is ",
                               use.share * mib, " MiB; ranks ", ranks, " had not sealed their part of ",
                               save->key.tag, " in time"),
                  {{"tag", save->key.tag}, {"ranks", ranks}}));
  }
}

}  // namespace ckptd
