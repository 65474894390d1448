// SharedDisk: the content of the root, and the effect of each request.
#include "tests/sim_nodes/shared_disk.h"

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"
#include "storage/base/status_macros.h"
#include "storage/commit/checkpoint/scan.h"
#include "storage/commit/shared/shared_scan.h"
#include "storage/commit/steps/commit_rules.h"
#include "tests/sim_nodes/shared_bucket.h"

namespace ckptd::sim_nodes {

using std::chrono::milliseconds;
using std::chrono::seconds;

SharedDisk::SharedDisk(SharedDiskFaults faults, uint64_t seed, sim::Schedule* schedule, Oracle* oracle)
    : faults_(faults), seed_(seed), random_(seed), schedule_(schedule), oracle_(oracle) {}

void SharedDisk::AddForeign(const std::string& tag) {
  if (names_.tags.contains(tag) || names_.half_removed.contains(tag)) return;
  foreign_.insert(tag);
  oracle_->TagTaken(tag);
}

std::vector<int64_t> SharedDisk::InFlight() const {
  std::vector<int64_t> sequences;
  for (const auto& [name, sequence] : names_.inflight) sequences.push_back(sequence);
  return sequences;
}

int64_t SharedDisk::newest() const {
  int64_t newest = 0;
  for (const auto& [tag, checkpoint] : names_.tags) newest = std::max(newest, checkpoint->summary.sequence());
  return newest;
}

std::vector<std::string> SharedDisk::Tags() const {
  std::map<int64_t, std::string> by_sequence;
  for (const auto& [tag, checkpoint] : names_.tags) by_sequence[checkpoint->summary.sequence()] = tag;
  std::vector<std::string> tags;
  for (const auto& [sequence, tag] : by_sequence) tags.push_back(tag);
  return tags;
}

int64_t SharedDisk::PutBack(uint64_t which) {
  std::vector<CheckpointPtr> free;
  for (const auto& [sequence, checkpoint] : removed_) {
    const std::string& tag = checkpoint->summary.tag();
    if (!names_.tags.contains(tag) && !names_.half_removed.contains(tag) && !foreign_.contains(tag))
      free.push_back(checkpoint);
  }
  if (free.empty()) return 0;
  // Often the newest, whose removal may not have ended in etcd.
  Checkpoint copy = *(which % 2 == 0 ? free.back() : free[which / 2 % free.size()]);
  const std::string tag = copy.summary.tag();
  const int64_t sequence = copy.summary.sequence();
  copy.inode = next_inode_++;
  Remember("");
  names_.tags[tag] = std::make_shared<const Checkpoint>(std::move(copy));
  put_back_.insert(sequence);
  oracle_->PutBack(sequence);
  return sequence;
}

SharedDisk::CheckpointPtr SharedDisk::Find(const std::string& tag) const {
  const auto found = names_.tags.find(tag);
  return found == names_.tags.end() ? nullptr : found->second;
}

SharedDisk::CheckpointPtr SharedDisk::FindAsSeenBy(const std::string& node, const std::string& tag) {
  const Names view = View(node);
  const auto found = view.tags.find(tag);
  return found == view.tags.end() ? nullptr : found->second;
}

absl::Status SharedDisk::PutIn(const std::string& node, const CheckpointPtr& copy, int64_t term) {
  if (term < highest_term_) return ErrnoError(ENOENT, absl::StrCat("the directory of term ", term));
  const std::string& tag = copy->summary.tag();
  if (names_.tags.contains(tag) || names_.half_removed.contains(tag) || foreign_.contains(tag))
    return MakeError(absl::StatusCode::kAlreadyExists, reason::kTagTaken, tag);
  Checkpoint whole = *copy;
  whole.inode = next_inode_++;
  Remember(node);
  names_.tags[tag] = std::make_shared<const Checkpoint>(std::move(whole));
  return absl::OkStatus();
}

void SharedDisk::Lose() {
  names_ = {};
  past_.clear();
  foreign_.clear();
  records_.clear();
  manifests_.clear();
  damaged_.clear();
  pointers_.clear();
  newest_pointed_.clear();
  removed_.clear();
  put_back_.clear();
  record_.clear();
  pin_record_.clear();
  highest_term_ = first_term_ = 0;
}

std::map<int64_t, std::string> SharedDisk::put_back() const {
  std::map<int64_t, std::string> there;
  for (const auto& [tag, checkpoint] : names_.tags) {
    if (put_back_.contains(checkpoint->summary.sequence())) there[checkpoint->summary.sequence()] = tag;
  }
  return there;
}

std::string SharedDisk::CheckPointers() const {
  if (!damaged_.empty() || !foreign_.empty()) return "";
  std::map<std::string, int64_t> named;
  for (const auto& [tag, checkpoint] : names_.tags) {
    for (const auto& pointer : checkpoint->summary.pointers()) {
      int64_t& newest = named[pointer.first];
      newest = std::max(newest, checkpoint->summary.sequence());
    }
  }
  for (const auto& [name, newest] : newest_pointed_) {
    const int64_t file = pointers_.contains(name) ? pointers_.at(name).first : 0;
    if (named[name] == newest && file == newest) continue;
    return absl::StrCat("the pointer ", name, " was named by sequence ", newest, ", and then by ",
                        named[name], "; its file names ", file);
  }
  return "";
}

std::set<int64_t> SharedDisk::Sequences() const {
  std::set<int64_t> sequences;
  for (const auto& [tag, checkpoint] : names_.tags) sequences.insert(checkpoint->summary.sequence());
  return sequences;
}

std::set<int64_t> SharedDisk::RecordedDamage() const {
  std::set<int64_t> sequences;
  for (const auto& [sequence, damage] : record_) sequences.insert(sequence);
  return sequences;
}

void SharedDisk::Damage(uint64_t which) {
  std::map<int64_t, const Checkpoint*> committed;
  for (const auto& [tag, checkpoint] : names_.tags) {
    if (checkpoint->summary.suspect().empty()) committed[checkpoint->summary.sequence()] = checkpoint.get();
  }
  if (committed.size() < 2) return;
  const auto newest = std::prev(committed.end()), before = std::prev(newest);
  if (damaged_.contains(newest->first) || damaged_.contains(before->first)) return;
  const std::vector<Part>& parts = newest->second->parts;
  damaged_[newest->first] = parts[which % parts.size()].record.rank();
  oracle_->Damaged(newest->first);
}

// A reader that is late sees no file of a checkpoint that has been removed.
std::optional<storage::v1::Damage> SharedDisk::FindDamage(int64_t sequence, int rank, int of) const {
  const bool is_there = std::any_of(names_.tags.begin(), names_.tags.end(), [sequence](const auto& at_tag) {
    return at_tag.second->summary.sequence() == sequence;
  });
  const auto damaged = damaged_.find(sequence);
  if (is_there && (damaged == damaged_.end() || damaged->second % of != rank)) return std::nullopt;
  storage::v1::Damage damage;
  damage.set_message(is_there ? "a wrong checksum" : "a file is missing");
  return damage;
}

Duration SharedDisk::Latency(Duration shortest, Duration longest) {
  Duration latency = random_.Spread(shortest, longest);
  if (Hits(faults_.slow)) latency += random_.Spread(milliseconds(20), seconds(4));
  return latency;
}

Duration SharedDisk::Hang(const std::string& node) {
  if (!faulty_) return Duration::zero();
  const Instant now = schedule_->clock().Now();
  Instant until = hangs_until_;
  if (const auto found = node_hangs_until_.find(node); found != node_hangs_until_.end())
    until = std::max(until, found->second);
  if (until <= now) return Duration::zero();
  last_hang_ends_ = std::max(last_hang_ends_, until);
  return until - now;
}

// ---- old names

void SharedDisk::Remember(const std::string& node) {
  const Instant now = schedule_->clock().Now();
  past_.push_back({now, node, names_});
  while (past_.front().until < now - kStaleness) past_.pop_front();
}

SharedDisk::Names SharedDisk::View(const std::string& node) {
  if (!Hits(faults_.stale)) return names_;
  const Instant now = schedule_->clock().Now();
  const Instant at = now - Duration(random_.Between(0, Duration(kStaleness).count()));
  // Goes back in time to the names at `at`, or to the last change of this node.
  const Names* view = &names_;
  for (auto past = past_.rbegin(); past != past_.rend() && past->until > at; ++past) {
    if (past->changed_by == node) break;
    view = &past->names;
  }
  return *view;
}

// ---- requests of the coordinator

absl::StatusOr<std::string> SharedDisk::MakeInflight(const std::string& node, const std::string& tag,
                                                     int64_t sequence) {
  if (Hits(faults_.make)) return ErrnoError(EIO, "making an in-flight directory");
  Remember(node);
  const std::string name = absl::StrCat(tag, ".", sequence, ".", ++made_);
  names_.inflight[name] = sequence;
  return name;
}

// A directory that Find reports at the tag or in the trash is durable: Find syncs it.
absl::StatusOr<SharedPlace> SharedDisk::Find(const std::string& node, const SharedInflight& save) {
  return PlaceOf(View(node), save);
}

SharedPlace SharedDisk::PlaceOf(const Names& view, const SharedInflight& save) {
  const auto at_tag = view.tags.find(save.tag);
  if (at_tag != view.tags.end() && at_tag->second->summary.sequence() == save.sequence)
    return SharedPlace::kPublished;
  if (view.inflight.contains(save.name)) return SharedPlace::kInFlight;
  if (view.trash.contains(save.name)) return SharedPlace::kInTrash;
  const bool has_younger = std::any_of(view.tags.begin(), view.tags.end(), [&save](const auto& other) {
    return other.second->summary.sequence() > save.sequence;
  });
  return has_younger ? SharedPlace::kSuperseded : SharedPlace::kNowhere;
}

// Only while faults are on. A save that is published later is whole.
bool SharedDisk::PartsConflict(int64_t sequence) const {
  const uint64_t percent = sim::Mix(seed_, static_cast<uint64_t>(sequence)) % 100;
  return faulty_ && percent < static_cast<uint64_t>(faults_.conflict);
}

absl::StatusOr<std::vector<SharedDisk::Part>> SharedDisk::PartsOf(
    const SharedRootIo::Publication& publication) const {
  const auto records = records_.find(publication.save.name);
  std::vector<Part> parts;
  for (const auto& [node, digest] : publication.digests) {
    if (records == records_.end() || !records->second.contains(digest))
      return ErrnoError(ENOENT, absl::StrCat("the record of ", node));
    const std::vector<Part>& of_node = records->second.at(digest);
    parts.insert(parts.end(), of_node.begin(), of_node.end());
  }
  if (parts.empty()) return ErrnoError(ENOENT, "the records of all nodes");
  return parts;
}

absl::StatusOr<SharedDisk::Checkpoint> SharedDisk::MakeCheckpoint(
    const SharedRootIo::Publication& publication) const {
  Checkpoint checkpoint;
  CKPTD_ASSIGN_OR_RETURN(checkpoint.parts, PartsOf(publication));
  checkpoint.summary = checkpoint.parts.front().record.checkpoint();
  checkpoint.summary.set_sequence(publication.save.sequence);
  for (const Part& part : checkpoint.parts) MergePart(part.record.checkpoint(), checkpoint.summary);
  EndMerge(checkpoint.summary);
  SetTimes(publication.times, checkpoint.summary);
  InheritPointers(publication.inherited_pointers, checkpoint.summary);
  return checkpoint;
}

absl::Status SharedDisk::CheckPlace(const Names& names, const std::string& tag, const Checkpoint& save,
                                    const std::set<int64_t>& pinned) const {
  Target target{TargetKind::kNothing, {}, ""};
  if (foreign_.contains(tag)) target = {TargetKind::kForeign, {}, "another program's directory"};
  if (const auto found = names.tags.find(tag); found != names.tags.end())
    target = {TargetKind::kCheckpoint, found->second->summary, ""};
  return CheckMayReplace(target, pinned.contains(target.summary.sequence()), save.summary);
}

// As TakeOverPointers.
std::map<std::string, std::string> SharedDisk::InheritedBy(const Names& names, const Checkpoint& old,
                                                           const storage::v1::ManifestSummary& save) {
  std::map<std::string, std::string> left(old.summary.pointers().begin(), old.summary.pointers().end());
  for (const auto& own : save.pointers()) left.erase(own.first);
  for (const auto& [tag, other] : names.tags) {
    if (other->summary.sequence() <= old.summary.sequence()) continue;
    for (const auto& moved_on : other->summary.pointers()) left.erase(moved_on.first);
  }
  storage::v1::ManifestSummary whole = save;
  InheritPointers(left, whole);
  std::erase_if(left, [&whole](const auto& pointer) { return !whole.pointers().contains(pointer.first); });
  return left;
}

absl::StatusOr<SharedRootIo::Replaced> SharedDisk::FindReplaced(const std::string& node,
                                                                const SharedRootIo::Publication& publication,
                                                                const std::set<int64_t>& pinned) {
  using Replaced = SharedRootIo::Replaced;
  if (Hits(faults_.open)) return ErrnoError(EIO, "looking at a tag");
  const SharedInflight& save = publication.save;
  const Names view = View(node);
  if (PartsConflict(save.sequence)) return Replaced();
  const auto found = view.tags.find(save.tag);
  const auto half = view.half_removed.find(save.tag);
  if (found == view.tags.end() && half == view.half_removed.end()) return Replaced();
  const SharedPlace place = PlaceOf(view, save);
  if (place != SharedPlace::kInFlight && place != SharedPlace::kNowhere) return Replaced();
  if (found == view.tags.end()) return Replaced{half->second};
  CKPTD_ASSIGN_OR_RETURN(const Checkpoint checkpoint, MakeCheckpoint(publication));
  if (!CheckPlace(view, save.tag, checkpoint, pinned).ok()) return Replaced();
  return Replaced{found->second->summary.sequence(), InheritedBy(view, *found->second, checkpoint.summary)};
}

absl::StatusOr<SharedRootIo::Published> SharedDisk::Publish(const std::string& node,
                                                            const SharedRootIo::Publication& publication,
                                                            std::set<int64_t> pinned) {
  const SharedInflight& save = publication.save;
  const auto at_tag = names_.tags.find(save.tag);
  if (at_tag != names_.tags.end() && at_tag->second->summary.sequence() == save.sequence)
    return SharedRootIo::Published();
  if (Hits(faults_.publish)) return ErrnoError(EIO, "writing the manifest");
  if (!names_.inflight.contains(save.name)) return ErrnoError(ENOENT, save.name);
  CKPTD_ASSIGN_OR_RETURN(Checkpoint checkpoint, MakeCheckpoint(publication));
  pinned.erase(publication.replaces);  // The ledger has decided that it goes.

  if (PartsConflict(save.sequence)) {
    oracle_->Fault();
    Remember(node);
    names_.trash[save.name] = save.sequence;
    names_.inflight.erase(save.name);
    return SharedRootIo::Published{
        0, MakeError(absl::StatusCode::kInvalidArgument, reason::kFileConflict, "two ranks have one file")};
  }
  if (at_tag != names_.tags.end() && at_tag->second->summary.sequence() != publication.replaces &&
      CheckPlace(names_, save.tag, checkpoint, pinned).ok())
    return SharedRootIo::Published{at_tag->second->summary.sequence(), absl::OkStatus()};
  std::string manifest = absl::StrCat("times ", publication.times.earlier_us, " ", publication.times.this_us);
  for (const auto& [name, content] : publication.inherited_pointers) absl::StrAppend(&manifest, " ", name);
  for (const auto& [of, digest] : publication.digests) absl::StrAppend(&manifest, " ", of, "=", digest);
  const auto [written, is_first] = manifests_.try_emplace(save.name, manifest);
  if (!is_first && written->second != manifest) {
    oracle_->Violated(absl::StrCat("two coordinators write different manifests of sequence ", save.sequence,
                                   ": ", written->second, ", and ", manifest));
  }
  if (const absl::Status refused = CheckPlace(names_, save.tag, checkpoint, pinned); !refused.ok()) {
    Remember(node);
    names_.trash[save.name] = save.sequence;
    names_.inflight.erase(save.name);
    return SharedRootIo::Published{0, refused};
  }
  if (at_tag != names_.tags.end())
    return SharedRootIo::Published{at_tag->second->summary.sequence(), absl::OkStatus()};
  if (const auto half = names_.half_removed.find(save.tag); half != names_.half_removed.end())
    return SharedRootIo::Published{half->second, absl::OkStatus()};

  std::map<int, sim::Contents> contents;
  for (const Part& part : checkpoint.parts) contents[part.record.rank()] = part.contents;
  Remember(node);
  names_.inflight.erase(save.name);
  checkpoint.inode = next_inode_++;
  const storage::v1::ManifestSummary summary = checkpoint.summary;
  for (const auto& pointer : summary.pointers()) {
    int64_t& newest = newest_pointed_[pointer.first];
    newest = std::max(newest, save.sequence);
  }
  names_.tags[save.tag] = std::make_shared<const Checkpoint>(std::move(checkpoint));
  oracle_->Published({oracle_->IdOf(publication.attempt), save.tag, publication.ordinal}, summary, contents);
  if (bucket_ != nullptr) bucket_->model().OnPublished(save.tag, save.sequence);
  if (Hits(faults_.lost_publish)) return ErrnoError(EIO, "syncing the root");
  return SharedRootIo::Published();
}

PointerFiles SharedDisk::UpdatePointers(const std::map<std::string, CheckpointPtr>& tags,
                                        const std::map<int64_t, storage::v1::Damage>& damage) {
  std::map<std::string, int64_t> decided;
  const auto is_better = [&damage](int64_t one, int64_t other) {
    return damage.contains(one) == damage.contains(other) ? one > other : !damage.contains(one);
  };
  for (const auto& [tag, checkpoint] : tags) {
    const int64_t sequence = checkpoint->summary.sequence();
    for (const auto& pointer : checkpoint->summary.pointers()) {
      const auto [best, is_new] = decided.try_emplace(pointer.first, sequence);
      if (!is_new && is_better(sequence, best->second)) best->second = sequence;
    }
  }
  PointerFiles files;
  for (const auto& [name, sequence] : decided) {
    files.holders.insert(sequence);
    const auto [file, is_new] = pointers_.try_emplace(name, sequence, schedule_->clock().Now());
    if (file->second.first != sequence) file->second = {sequence, schedule_->clock().Now()};
  }
  return files;
}

absl::StatusOr<bool> SharedDisk::Remove(const std::string& node, const std::string& tag, int64_t sequence,
                                        uint64_t inode) {
  if (Hits(faults_.remove)) return ErrnoError(EIO, "removing a checkpoint");
  if (const auto at_tag = names_.tags.find(tag);
      at_tag != names_.tags.end() && at_tag->second->summary.sequence() == sequence) {
    if (inode != 0 && inode != at_tag->second->inode) return true;
    Remember(node);
    removed_[sequence] = at_tag->second;
    names_.tags.erase(at_tag);
    names_.half_removed[tag] = sequence;
    std::map<int64_t, std::string> left;
    for (const auto& [other, checkpoint] : names_.tags) left[checkpoint->summary.sequence()] = other;
    oracle_->Removed(tag, sequence, left, /*replaced=*/inode == 0);
    if (bucket_ != nullptr && inode != 0) bucket_->OnEvicted(*removed_[sequence]);
    // By retention. A node whose names are old may have written the file a moment ago, and damage moves it
    // back.
    for (const auto& [name, names] : pointers_) {
      if (inode != 0 && damaged_.empty() && names.first == sequence &&
          schedule_->clock().Now() - names.second > 4 * kStaleness)
        oracle_->Violated(
            absl::StrCat("the checkpoint ", tag, ", which the pointer file ", name, " names, is removed"));
    }
  }
  const auto half = names_.half_removed.find(tag);
  if (half == names_.half_removed.end() || half->second != sequence) return true;
  if (random_.Percent(30)) return false;  // The budget was spent.
  Remember(node);
  names_.half_removed.erase(half);
  return true;
}

// The list of names may be old, but only directories that exist are moved.
absl::Status SharedDisk::Sweep(const std::string& node, int64_t last, const std::set<int64_t>& unfinished) {
  const auto has_ended = [&](int64_t sequence) { return sequence <= last && !unfinished.contains(sequence); };
  const Names view = View(node);
  Remember(node);
  for (const auto& [name, sequence] : view.inflight) {
    if (has_ended(sequence) && names_.inflight.erase(name) > 0) names_.trash[name] = sequence;
  }
  for (const auto& [name, sequence] : view.trash) {
    if (has_ended(sequence) && names_.trash.erase(name) > 0) records_.erase(name);
  }
  return absl::OkStatus();
}

}  // namespace ckptd::sim_nodes
