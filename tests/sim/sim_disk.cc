// SimDisk: the content of the disk, its changes, and scans.
#include "tests/sim/sim_disk.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "tests/sim/sim_bucket.h"
#include "tests/sim/sim_disk_inl.h"

namespace ckptd::sim {

using std::chrono::milliseconds;
using std::chrono::seconds;

int64_t Volume::free_bytes() const {
  int64_t free = capacity;
  for (const SimDisk* root : roots) free -= root->used_bytes();
  return std::max<int64_t>(0, free);
}

int64_t SimDisk::used_bytes() const {
  int64_t used = static_cast<int64_t>(foreign_.size()) * kForeignSize;
  for (const auto& tag : tags_) used += tag.second.bytes;
  for (const auto& dir : inflight_) used += dir.second.found.bytes;
  for (const auto& entry : trash_) used += entry.bytes;
  return used;
}

bool SimDisk::MayGiveRoom(int64_t but_sequence) const {
  return !trash_.empty() || std::any_of(inflight_.begin(), inflight_.end(), [&](const auto& dir) {
    return dir.second.number != 0 && dir.second.sequence != but_sequence;
  });
}

bool SimDisk::Holds(const std::string& tag, int64_t sequence) const {
  auto found = tags_.find(tag);
  return found != tags_.end() && found->second.summary.sequence() >= sequence;
}

bool SimDisk::HasBytes(const std::string& tag, int64_t sequence) const {
  const auto found = tags_.find(tag);
  if (found == tags_.end() || found->second.summary.sequence() != sequence) return false;
  return std::any_of(found->second.marks.begin(), found->second.marks.end(),
                     [](const auto& file) { return !file.second.empty(); });
}

std::string SimDisk::Leftovers() const {
  std::string words;
  for (const auto& dir : inflight_) absl::StrAppend(&words, " in flight ", dir.second.tag);
  for (const auto& entry : trash_) absl::StrAppend(&words, " in trash sequence ", entry.sequence);
  return words;
}

void SimDisk::AddForeign(const std::string& tag, int64_t done_us) {
  if (tags_.contains(tag)) return;
  Foreign& foreign = foreign_[tag];
  foreign.done_us = done_us;
  foreign.version = next_version_++;
  for (const char* path : {"done", "model.pt"}) {
    Marks& marks = foreign.marks[path];
    marks.resize(CountMarks(kForeignFile));
    for (auto& mark : marks) mark = random_.Next();
  }
}

std::vector<std::string> SimDisk::ForeignTags() const {
  std::vector<std::string> tags;
  for (const auto& foreign : foreign_) tags.push_back(foreign.first);
  return tags;
}

void SimDisk::DamageFile(uint64_t which) {
  std::vector<std::pair<SimDisk::Generation*, std::string>> files;
  for (auto& [tag, generation] : tags_) {
    for (const auto& [path, marks] : generation.marks) {
      if (!marks.empty()) files.emplace_back(&generation, path);
    }
  }
  if (files.empty()) return;
  const auto& [generation, path] = files[which % files.size()];
  generation->rotten->insert(path);
}

bool SimDisk::MoveIn(const SimDisk& from) {
  const Generation* newest = nullptr;
  for (const auto& [tag, generation] : from.tags_) {
    if (newest == nullptr || generation.summary.sequence() > newest->summary.sequence()) newest = &generation;
  }
  if (newest == nullptr) return false;
  int64_t highest = record_.last_sequence();
  for (const auto& [tag, generation] : tags_) highest = std::max(highest, generation.summary.sequence());
  for (const auto& dir : inflight_) highest = std::max(highest, dir.second.sequence);
  constexpr int64_t kAbove = 500;  // More sequences than are given before a scan finds it.
  Generation moved = *newest;
  moved.pinned = false;
  moved.damage.reset();
  moved.rotten = std::make_shared<std::set<std::string>>();
  const std::string tag = absl::StrCat("moved", ++moved_in_);
  const auto rename = [&](storage::v1::ManifestSummary* summary) {
    summary->set_tag(tag);
    summary->set_sequence(highest + kAbove);
  };
  rename(&moved.summary);
  for (auto& part : moved.parts) {
    rename(part.mutable_checkpoint());
    part.set_sequence(highest + kAbove);
  }
  oracle_->MovedIn(run_, moved.summary);
  tags_[tag] = std::move(moved);
  unseen_.insert(tag);
  return true;
}

// Leaves out checkpoints that are still in the trash, from which the daemon may bring them back.
bool SimDisk::PutBack(uint64_t which) {
  std::vector<const Generation*> free;
  for (const Generation& evicted : evicted_) {
    const std::string& tag = evicted.summary.tag();
    const bool in_trash = std::any_of(trash_.begin(), trash_.end(), [&tag](const TrashEntry& entry) {
      return entry.whole && entry.whole->summary.tag() == tag;
    });
    if (!in_trash && !tags_.contains(tag) && !foreign_.contains(tag)) free.push_back(&evicted);
  }
  if (free.empty()) return false;
  const Generation& back = *free[which % free.size()];
  unseen_.insert(back.summary.tag());
  tags_[back.summary.tag()] = back;
  return true;
}

// The daemon makes .ckptd again, with the run's state that it remembers, before its next change.
bool SimDisk::RemoveCkptdFolder() {
  const bool has_something = !inflight_.empty() || !trash_.empty();
  for (const auto& dir : inflight_) {
    oracle_->Excuse(run_, dir.second.sequence);
    if (dir.second.number != 0) lost_.insert(dir.second.number);
  }
  inflight_.clear();
  trash_.clear();
  return has_something;
}

void SimDisk::Lose() {
  tags_.clear();
  foreign_.clear();
  inflight_.clear();
  trash_.clear();
  evicted_.clear();
  unseen_.clear();
  record_.Clear();
}

Duration SimDisk::Latency(Duration shortest, Duration longest) {
  Duration latency = random_.Spread(shortest, longest);
  if (Hits(faults_.slow)) latency += random_.Spread(milliseconds(20), seconds(4));
  return latency;
}

absl::Status SimDisk::Rename(InflightDir& dir) {
  if (foreign_.contains(dir.tag))
    return MakeError(absl::StatusCode::kAlreadyExists, "TAG_FOREIGN", absl::StrCat(dir.tag, " is not ours"));
  auto old = tags_.find(dir.tag);
  if (old != tags_.end()) {
    if (old->second.pinned)
      return MakeError(absl::StatusCode::kFailedPrecondition, "PINNED", absl::StrCat(dir.tag, " is pinned"));
    if (old->second.summary.sequence() > dir.sequence)
      return MakeError(absl::StatusCode::kFailedPrecondition, "SUPERSEDED",
                       absl::StrCat(dir.tag, " holds a newer generation"));
    if (!dir.found.summary.suspect().empty() && old->second.summary.suspect().empty())
      return MakeError(absl::StatusCode::kFailedPrecondition, "SUSPECT",
                       absl::StrCat(dir.tag, " is suspect, and holds a good one"));
    MoveToTrash(old->second);
  }
  dir.found.summary.set_size_bytes(dir.found.bytes);
  tags_[dir.tag] = dir.found;
  oracle_->Published(run_, dir.found.summary, dir.found.contents);
  if (bucket_ != nullptr) bucket_->model().OnPublished(dir.tag, dir.sequence);
  return absl::OkStatus();
}

void SimDisk::MoveToTrash(Generation checkpoint) {
  const int64_t sequence = checkpoint.summary.sequence(), bytes = checkpoint.bytes;
  trash_.push_back({sequence, bytes, std::move(checkpoint), schedule_->clock().UnixMicros()});
}

std::vector<SimDisk::TrashEntry>::iterator SimDisk::NextInTrash(const TrashTerms& terms,
                                                                const std::multiset<int64_t>& readers) {
  auto oldest = trash_.end();
  for (auto entry = trash_.begin(); entry != trash_.end(); ++entry) {
    entry->moved_us = std::min(entry->moved_us, terms.now_us);  // The clock may have been set back since.
    if (readers.contains(entry->sequence)) continue;
    if (!entry->whole || entry->moved_us + terms.grace_us <= terms.now_us) return entry;
    if (oldest == trash_.end() || entry->moved_us < oldest->moved_us) oldest = entry;
  }
  return terms.room_bytes > 0 ? oldest : trash_.end();
}

TrashLeft SimDisk::LeftInTrash(const TrashTerms& terms) const {
  TrashLeft left;
  for (const auto& entry : trash_) {
    left.bytes += entry.bytes;
    const int64_t due_in = entry.whole ? entry.moved_us + terms.grace_us - terms.now_us : 0;
    if (due_in <= 0) continue;
    left.in_grace_bytes += entry.bytes;
    left.due_in_us = left.due_in_us == 0 ? due_in : std::min(left.due_in_us, due_in);
  }
  return left;
}

std::map<int64_t, SimDisk::InflightDir>::iterator SimDisk::Find(int64_t number) {
  return std::find_if(inflight_.begin(), inflight_.end(),
                      [&](const auto& dir) { return dir.second.number == number; });
}

void SimDisk::Recover(std::vector<RecoveredSave>* recovered) {
  std::map<int64_t, int64_t> left;  // By sequence.
  for (const auto& dir : inflight_) {
    if (dir.second.number == 0) left[dir.second.sequence] = dir.first;
  }
  for (const auto& [sequence, at] : left) {
    InflightDir& dir = inflight_.at(at);
    const auto& parts = dir.found.parts;
    const bool complete =
        !parts.empty() && static_cast<int>(dir.recorded.size()) == parts[0].checkpoint().world_size();
    RecoveredSave save{dir.tag, sequence, false, "a part is missing"};
    if (complete) {
      dir.found.summary = parts[0].checkpoint();
      for (const auto& part : parts) {
        if (!part.checkpoint().suspect().empty()) dir.found.summary.set_suspect(part.checkpoint().suspect());
      }
      const auto old = tags_.find(dir.tag);
      const int64_t before = old == tags_.end() ? 0 : old->second.summary.sequence();
      const absl::Status renamed = Rename(dir);
      if (renamed.ok() && before != 0) oracle_->MayBeReportedLost(run_, before);
      save.published = renamed.ok();
      save.why = renamed.ok() ? "complete" : std::string(renamed.message());
    }
    if (!save.published) trash_.push_back({sequence, dir.found.bytes});
    inflight_.erase(at);
    recovered->push_back(std::move(save));
  }
}

absl::StatusOr<RootSnapshot> SimDisk::Scan(std::vector<RecoveredSave> recovered) {
  unseen_.clear();
  RootSnapshot snapshot;
  snapshot.probe.file_system = "simulated";
  snapshot.probe.io_backend = "threads";
  snapshot.probe.free_bytes = free_bytes();
  snapshot.probe.total_bytes = volume_->capacity;
  int64_t highest = record_.last_sequence();
  for (const auto& tag : tags_) {
    const int64_t sequence = tag.second.summary.sequence();
    snapshot.committed[sequence] = {tag.second.summary, tag.second.pinned, tag.second.damage};
    highest = std::max(highest, sequence);
  }
  for (const auto& entry : trash_) {
    snapshot.trash_bytes += entry.bytes;
    highest = std::max(highest, entry.sequence);
  }
  for (const RecoveredSave& save : recovered) highest = std::max(highest, save.sequence);
  for (const auto& [tag, foreign] : foreign_) snapshot.foreign.push_back({tag, foreign.done_us});
  std::sort(snapshot.foreign.begin(), snapshot.foreign.end());
  snapshot.recovered = std::move(recovered);
  snapshot.run_record = record_;
  snapshot.highest_sequence = highest;
  return snapshot;
}

}  // namespace ckptd::sim
