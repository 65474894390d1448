#include "daemon/engine/catalog.h"

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
  for (auto entry = committed_.rbegin(); entry != committed_.rend(); ++entry) {
    if (entry->second.summary.tag() == tag) return &entry->second;
  }
  return nullptr;
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
                      std::vector<DamagedCheckpoint> unreadable) {
  for (const auto& [sequence, known] : committed_) {  // Damage that could not be written down.
    const auto found = committed.find(sequence);
    if (found != committed.end() && !found->second.damage) found->second.damage = known.damage;
  }
  committed_ = std::move(committed);
  unreadable_ = std::move(unreadable);
  for (int64_t sequence : std::exchange(perhaps_evicted_, {})) evicting_.erase(sequence);
}

const CommittedCheckpoint& Catalog::Add(CommittedCheckpoint checkpoint) {
  const int64_t sequence = checkpoint.summary.sequence();
  return committed_[sequence] = std::move(checkpoint);
}

void Catalog::RemoveTag(const std::string& tag) {
  std::erase_if(committed_, [&tag](const auto& entry) { return entry.second.summary.tag() == tag; });
}

void Catalog::SetDamage(int64_t sequence, std::optional<storage::v1::Damage> damage) {
  if (const auto found = committed_.find(sequence); found != committed_.end())
    found->second.damage = std::move(damage);
}

void Catalog::SetPinned(int64_t sequence, bool pinned) {
  if (const auto found = committed_.find(sequence); found != committed_.end()) found->second.pinned = pinned;
}

}  // namespace ckptd
