#include "daemon/engine/run/catalog.h"

#include <algorithm>
#include <utility>

namespace ckptd {

bool IsGood(const CommittedCheckpoint& checkpoint) {
  return !checkpoint.damage && checkpoint.summary.suspect().empty();
}

const CommittedCheckpoint* Catalog::Find(int64_t sequence) const {
  const auto found = committed_.find(sequence);
  return found == committed_.end() ? nullptr : &found->second;
}

const CommittedCheckpoint* Catalog::FindTag(const std::string& tag) const {
  const std::set<int64_t>& sequences = SequencesOf(tag);
  return sequences.empty() ? nullptr : Find(*sequences.rbegin());
}

const std::set<int64_t>& Catalog::SequencesOf(const std::string& tag) const {
  static const auto* const kNone = new std::set<int64_t>;
  const auto found = by_tag_.find(tag);
  return found == by_tag_.end() ? *kNone : found->second;
}

const CommittedCheckpoint* Catalog::Newest() const {
  for (auto entry = committed_.rbegin(); entry != committed_.rend(); ++entry) {
    if (IsGood(entry->second) && !evicting_.contains(entry->first)) return &entry->second;
  }
  return nullptr;
}

const CommittedCheckpoint* Catalog::NewestWithSuspects() const {
  for (auto entry = committed_.rbegin(); entry != committed_.rend(); ++entry) {
    if (!entry->second.damage && !evicting_.contains(entry->first)) return &entry->second;
  }
  return nullptr;
}

bool Catalog::IsDamaged(int64_t sequence) const {
  const CommittedCheckpoint* checkpoint = Find(sequence);
  return checkpoint != nullptr && checkpoint->damage.has_value();
}

bool Catalog::IsSuspect(int64_t sequence) const {
  const CommittedCheckpoint* checkpoint = Find(sequence);
  return checkpoint != nullptr && !checkpoint->summary.suspect().empty();
}

void Catalog::Replace(std::map<int64_t, CommittedCheckpoint> committed,
                      std::vector<DamagedCheckpoint> unreadable, const std::set<int64_t>& leaving) {
  for (const auto& [sequence, known] : committed_) {  // Damage that could not be written down.
    const auto found = committed.find(sequence);
    if (found != committed.end() && !found->second.damage) found->second.damage = known.damage;
  }
  // Also what was listed after its removal had been decided: a node is told the two in any order.
  withdrawn_.clear();
  for (const int64_t sequence : leaving) {
    const auto listed = committed_.find(sequence);
    if (listed == committed_.end()) continue;
    committed.insert(*listed);
    withdrawn_.insert(sequence);
  }
  committed_ = std::move(committed);
  by_tag_.clear();
  for (const auto& [sequence, checkpoint] : committed_) {
    by_tag_[checkpoint.summary.tag()].insert(sequence);
    latest_begin_us_ = std::max(latest_begin_us_, checkpoint.summary.create_time_us());
  }
  unreadable_ = std::move(unreadable);
  for (int64_t sequence : std::exchange(perhaps_evicted_, {})) evicting_.erase(sequence);
  ForgetWithdrawn();
}

const CommittedCheckpoint& Catalog::Add(CommittedCheckpoint checkpoint) {
  const int64_t sequence = checkpoint.summary.sequence();
  by_tag_[checkpoint.summary.tag()].insert(sequence);  // A sequence is of one save, and has one tag for good.
  latest_begin_us_ = std::max(latest_begin_us_, checkpoint.summary.create_time_us());
  committed_[sequence] = std::move(checkpoint);
  ForgetWithdrawn();
  return committed_.at(sequence);
}

void Catalog::Remove(int64_t sequence) {
  withdrawn_.erase(sequence);
  const auto found = committed_.find(sequence);
  if (found == committed_.end()) return;
  const auto of_tag = by_tag_.find(found->second.summary.tag());
  of_tag->second.erase(sequence);
  if (of_tag->second.empty()) by_tag_.erase(of_tag);
  committed_.erase(found);
}

void Catalog::Withdraw(int64_t sequence) {
  if (!committed_.contains(sequence)) return;
  withdrawn_.insert(sequence);
  ForgetWithdrawn();
}

void Catalog::ForgetWithdrawn() {
  for (const int64_t sequence : std::set<int64_t>(withdrawn_)) {
    // Who asks for the newest, suspect or not, asks for no good one of those that are suspect.
    const bool is_suspect = IsSuspect(sequence);
    const bool followed = std::any_of(
        committed_.upper_bound(sequence), committed_.end(), [this, is_suspect](const auto& newer) {
          return IsGood(newer.second) ||
                 (is_suspect && !newer.second.damage && !evicting_.contains(newer.first));
        });
    if (followed) Remove(sequence);
  }
}

void Catalog::RemoveTag(const std::string& tag) {
  for (const int64_t sequence : std::set<int64_t>(SequencesOf(tag))) Remove(sequence);
}

void Catalog::SetDamage(int64_t sequence, std::optional<storage::v1::Damage> damage) {
  if (const auto found = committed_.find(sequence); found != committed_.end())
    found->second.damage = std::move(damage);
}

void Catalog::SetPinned(int64_t sequence, bool pinned) {
  if (const auto found = committed_.find(sequence); found != committed_.end()) found->second.pinned = pinned;
}

}  // namespace ckptd
