// The order of admission: walks over the waiting saves, and turns. admission_rooms.cc reserves the room.
#include "daemon/engine/admission/admission_queue.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"

namespace ckptd {
namespace {

// The text is kept with each save, so it does not name each of 65536 ranks.
std::string SomeRanks(const std::vector<int>& ranks) {
  constexpr size_t kMaxNamed = 16;
  if (ranks.size() <= kMaxNamed) return JoinRanks(ranks);
  return absl::StrCat(JoinRanks({ranks.begin(), ranks.begin() + kMaxNamed}), " and ",
                      ranks.size() - kMaxNamed, " more");
}

}  // namespace

AdmissionQueue::AdmissionQueue(Clock* clock, SegmentPool* pool, const SaveTable* saves,
                               const ExpectedSizes* sizes, const MemoryShares* shares, DiskRoom* disk,
                               Duration over_share_grace, Hooks hooks)
    : clock_(clock),
      pool_(pool),
      saves_(saves),
      sizes_(sizes),
      shares_(shares),
      disk_(disk),
      over_share_grace_(over_share_grace),
      hooks_(std::move(hooks)) {}

void AdmissionQueue::Gather(Save* save) {
  const std::vector<int> missing = sizes_->UnknownRanks(*save);
  if (!missing.empty()) {
    save->WaitFor(WaitsFor::kSizes, absl::StrCat("ranks ", SomeRanks(missing), " to begin it"));
    return;
  }
  save->life.SizesKnown();
  save->WaitFor(WaitsFor::kOlderSaves, "older saves of this run");
  TryAdmitAll();
}

void AdmissionQueue::TryAdmitAll() {
  if (walking_) {
    walk_again_ = true;
    return;
  }
  walking_ = true;
  do {
    walk_again_ = false;
    try_again_at_.reset();
    AdmitSome();
  } while (walk_again_);
  walking_ = false;
}

void AdmissionQueue::OnTick(Instant now) {
  if (try_again_at_ && now >= *try_again_at_) TryAdmitAll();
}

void AdmissionQueue::TryAgainAt(Instant when) {
  if (!try_again_at_ || when < *try_again_at_) try_again_at_ = when;
}

// ---- a walk

void AdmissionQueue::AdmitSome() {
  EndTurnIfOver();
  Walk walk;
  walk.use = shares_->Use();
  if (TryTurn(walk) && TryWithinShare(walk) && TryBeyondShare(walk)) EndHeldBack(walk);
}

bool AdmissionQueue::Try(const Walk& walk, Save* save) {
  const int64_t id = save->id;
  const bool admitted = TryAdmit(save, walk.use);
  if (admitted || saves_->Find(id) == nullptr || save->phase() != SavePhase::kQueued) walk_again_ = true;
  return !walk_again_;
}

bool AdmissionQueue::TryTurn(Walk& walk) {
  if (!turn_) return true;
  Save* first = saves_->Find(turn_->save);
  if (!Try(walk, first)) return false;
  walk.runs.insert(first->run);
  walk.users.insert(first->run->uid);
  return true;
}

bool AdmissionQueue::TryWithinShare(Walk& walk) {
  for (const auto& [id, save] : saves_->all()) {
    if (save->phase() == SavePhase::kTarget || save->phase() == SavePhase::kGathering)
      walk.runs.insert(save->run);
    if (save->phase() != SavePhase::kQueued || (turn_ && turn_->save == id)) continue;
    if (!TryInOrder(walk, save)) return false;
  }
  return true;
}

bool AdmissionQueue::TryInOrder(Walk& walk, Save* save) {
  const Run* run = save->run;
  if (walk.runs.contains(run) || walk.users.contains(run->uid)) {
    walk.held_back.push_back(save);
    return true;
  }
  if (turn_ && save->busy != v1::SKIP) {
    walk.users.insert(run->uid);
    walk.held_back.push_back(save);
    return true;
  }
  if (walk.use.Held(run->uid) + shares_->NeededSegments(*save) > walk.use.share)
    return DeferBeyondShare(walk, save);
  if (!Try(walk, save)) return false;
  walk.runs.insert(run);
  if (save->waits_for != WaitsFor::kMemory || run->degraded) return true;
  const MemoryShares::Source source = shares_->AwaitedSource(*save, walk.use);
  if (source != MemoryShares::Source::kOwnRun) walk.users.insert(run->uid);
  walk.memory_awaited |= source == MemoryShares::Source::kAnyUser;
  return true;
}

// The save comes after all those that stay within their share, unless the disk has no room for it anyway.
bool AdmissionQueue::DeferBeyondShare(Walk& walk, Save* save) {
  const Run* run = save->run;
  const bool has_disk = ReserveDisk(save);
  if (save->phase() != SavePhase::kQueued) {
    walk_again_ = true;
    return false;
  }
  save->disk_reserved = 0;  // Reserved anew when there is memory.
  walk.runs.insert(run);
  if (!has_disk) return true;
  if (!run->degraded && shares_->AwaitedSource(*save, walk.use) != MemoryShares::Source::kOwnRun)
    walk.users.insert(run->uid);
  walk.beyond_share.push_back(save);
  return true;
}

bool AdmissionQueue::TryBeyondShare(Walk& walk) {
  SortByLastTurn(walk.beyond_share);
  std::vector<Save*> waiting;
  const bool small_ones_wait = walk.memory_awaited;
  for (Save* save : walk.beyond_share) {
    const bool waits_for_others = shares_->AwaitedSource(*save, walk.use) == MemoryShares::Source::kAnyUser;
    if (waits_for_others && (walk.memory_awaited || turn_)) {
      walk.held_back.push_back(save);
      continue;
    }
    if (!Try(walk, save)) return false;
    if (!waits_for_others || save->run->degraded || save->waits_for != WaitsFor::kMemory) continue;
    walk.memory_awaited = true;
    waiting.push_back(save);
  }
  if (!small_ones_wait && walk.use.users > 1) GiveTurn(waiting);
  return true;
}

// The user whose last turn is longest ago comes first.
void AdmissionQueue::SortByLastTurn(std::vector<Save*>& saves) const {
  const auto last = [this](const Save* save) {
    const auto turn = last_turn_.find(save->run->uid);
    return turn == last_turn_.end() ? Instant() : turn->second;
  };
  std::stable_sort(saves.begin(), saves.end(),
                   [&last](const Save* a, const Save* b) { return last(a) < last(b); });
}

// These saves get no room before other saves have theirs. A save with SKIP does not wait for that.
bool AdmissionQueue::EndHeldBack(const Walk& walk) {
  for (Save* save : walk.held_back) {
    if (save->busy == v1::SKIP) {
      Skip(save, "older saves wait for room, too");
      walk_again_ = true;
      return false;
    }
    if (!walk.runs.contains(save->run)) save->WaitFor(WaitsFor::kMemory, "memory: other saves are before it");
  }
  return true;
}

// ---- turns

void AdmissionQueue::EndTurnIfOver() {
  if (!turn_) return;
  const Instant now = clock_->Now();
  const Save* save = saves_->Find(turn_->save);
  if (save != nullptr && save->phase() == SavePhase::kQueued && now < turn_->until)
    return TryAgainAt(turn_->until);
  last_turn_[turn_->uid] = now;
  next_turn_at_ = now + over_share_grace_;
  turn_.reset();
}

// `waiting`: saves beyond the share that wait for memory of others, in their order.
void AdmissionQueue::GiveTurn(const std::vector<Save*>& waiting) {
  if (turn_ || waiting.empty()) return;
  const Instant now = clock_->Now();
  if (now < next_turn_at_) return TryAgainAt(next_turn_at_);
  turn_ = Turn{waiting.front()->id, waiting.front()->run->uid, now + over_share_grace_};
  TryAgainAt(turn_->until);
}

}  // namespace ckptd
