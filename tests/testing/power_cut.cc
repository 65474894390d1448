#include "tests/testing/power_cut.h"

#include <algorithm>
#include <cstring>

namespace ckptd {
namespace {

// Applies one change to `names`; `places` holds the place of each inode.
void Apply(const std::vector<std::pair<Slot, Inode>>& sets, const std::vector<Inode>& moved, Names& names,
           std::map<Inode, Slot>& places) {
  for (const Inode inode : moved) {
    const auto place = places.find(inode);
    if (place == places.end()) continue;
    names.erase(place->second);
    places.erase(place);
  }
  for (const auto& [slot, inode] : sets) {
    const auto taken = names.find(slot);
    if (taken != names.end()) {
      places.erase(taken->second);
      names.erase(taken);
    }
    if (inode == 0) continue;
    names[slot] = inode;
    places[inode] = slot;
  }
}

std::map<Inode, Slot> PlacesOf(const Names& names) {
  std::map<Inode, Slot> places;
  for (const auto& [slot, inode] : names) places[inode] = slot;
  return places;
}

}  // namespace

std::string NameOf(Loss loss) {
  switch (loss) {
    case Loss::kNothing:
      return "nothing";
    case Loss::kEverything:
      return "everything";
    case Loss::kData:
      return "data";
    case Loss::kBytes:
      return "bytes";
    case Loss::kEntries:
      return "entries";
    case Loss::kRandom:
      return "random";
  }
  return "";
}

PowerCut::PowerCut(Loss loss, uint64_t seed) : loss_(loss), random_(seed * 0x9e3779b97f4a7c15u + 1) {
  constexpr uint64_t kEighths[] = {1, 4, 7};
  keep_names_ = kEighths[random_() % 3];
  keep_bytes_ = kEighths[random_() % 3];
  keep_sizes_ = kEighths[random_() % 3];
  filler_ = loss == Loss::kBytes || Chance(4) ? '\xa5' : '\0';
}

bool PowerCut::KeepsName() {
  if (loss_ == Loss::kRandom) return Chance(keep_names_);
  return loss_ != Loss::kEverything && loss_ != Loss::kEntries;
}

size_t PowerCut::Pick(size_t versions, uint64_t keep_eighths) {
  if (!Chance(keep_eighths)) return 0;
  return Chance(4) ? versions : 1 + random_() % versions;
}

size_t PowerCut::PickBytes(size_t versions) {
  if (loss_ == Loss::kRandom) return Pick(versions, keep_bytes_);
  return loss_ == Loss::kNothing || loss_ == Loss::kEntries ? versions : 0;
}

size_t PowerCut::PickSize(size_t versions) {
  if (loss_ == Loss::kRandom) return Pick(versions, keep_sizes_);
  return loss_ == Loss::kEverything || loss_ == Loss::kData ? 0 : versions;
}

void UnsyncedBytes::Remember(size_t from, size_t to) {
  for (size_t sector = from / kSector; sector * kSector < to; ++sector) {
    std::string bytes = sector * kSector < now_.size() ? now_.substr(sector * kSector, kSector) : "";
    bytes.resize(kSector, '\0');
    sectors_[sector].push_back({std::move(bytes)});
  }
}

void UnsyncedBytes::Resize(size_t size) {
  const size_t old = now_.size();
  if (size == old) return;
  now_.resize(size, '\0');
  sizes_.push_back({size});
  // Truncated bytes must not reappear with the space.
  const size_t known =
      std::max(synced_.size(), sectors_.empty() ? 0 : (sectors_.rbegin()->first + 1) * kSector);
  if (size > old) Remember(old, std::min(size, known));
}

void UnsyncedBytes::Write(size_t offset, std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  if (offset + bytes.size() > now_.size()) Resize(offset + bytes.size());
  std::memcpy(now_.data() + offset, bytes.data(), bytes.size());
  Remember(offset, offset + bytes.size());
}

void UnsyncedBytes::Sync() {
  if (!sizes_.empty() && !sizes_.back().forgotten) {
    synced_.resize(sizes_.back().size, '\0');
    sizes_.clear();
  }
  std::erase_if(sectors_, [this](const auto& entry) {
    const auto& [sector, versions] = entry;
    if (versions.back().forgotten) return false;
    const size_t begin = sector * kSector;
    if (begin < synced_.size())
      std::memcpy(synced_.data() + begin, versions.back().bytes.data(),
                  std::min(kSector, synced_.size() - begin));
    return true;
  });
}

void UnsyncedBytes::FailSync() {
  for (auto& [sector, versions] : sectors_) {
    for (Version& version : versions) version.forgotten = true;
  }
  for (Size& size : sizes_) size.forgotten = true;
}

std::string UnsyncedBytes::After(PowerCut& cut) const {
  std::string bytes = synced_;
  if (!sizes_.empty()) {
    const size_t pick = cut.PickSize(sizes_.size());
    if (pick > 0) bytes.resize(sizes_[pick - 1].size, cut.filler());
  }
  for (const auto& [sector, versions] : sectors_) {
    const size_t pick = cut.PickBytes(versions.size());
    const size_t begin = sector * kSector;
    if (pick == 0 || begin >= bytes.size()) continue;
    std::memcpy(bytes.data() + begin, versions[pick - 1].bytes.data(),
                std::min(kSector, bytes.size() - begin));
  }
  return bytes;
}

void UnsyncedNames::Change(std::vector<std::pair<Slot, Inode>> sets, std::vector<Inode> moved) {
  Entry entry{std::move(sets), std::move(moved), {}};
  for (const auto& [slot, inode] : entry.sets) entry.unsynced.insert(slot.directory);
  log_.push_back(std::move(entry));
}

void UnsyncedNames::Sync(Inode directory) {
  for (Entry& entry : log_) entry.unsynced.erase(directory);
  if (log_.empty() || !log_.front().unsynced.empty()) return;
  std::map<Inode, Slot> places = PlacesOf(synced_);
  while (!log_.empty() && log_.front().unsynced.empty()) {
    Apply(log_.front().sets, log_.front().moved, synced_, places);
    log_.pop_front();
  }
}

Names UnsyncedNames::After(PowerCut& cut) const {
  Names names = synced_;
  std::map<Inode, Slot> places = PlacesOf(synced_);
  for (const Entry& entry : log_) {
    if (entry.unsynced.empty() || cut.KeepsName()) Apply(entry.sets, entry.moved, names, places);
  }
  return names;
}

}  // namespace ckptd
